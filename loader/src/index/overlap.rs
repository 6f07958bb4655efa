//! What a change of sequence length in mid-training does: which tokens come again, and which never come.
//!
//! Megatron counts samples, so a run that goes on at another sequence length skips as many samples of the *new* order as it
//! consumed of the old one. Both orders cut the same tokens differently, hence neither is a continuation of the other.
//! Counted are distinct tokens of the split (a sequence and a position in it); the extra token of a sample is left out, as
//! it is no input. Memory: two bits a token of the split. Time: the tokens consumed and to be consumed.

use std::ops::Range;

use ceteris_samplers::orders::megatron_index::{GptIndex, GptIndexError};
use serde::Serialize;

/// What a change does to one dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// Distinct tokens of the split.
    pub tokens: u64,
    /// Of these, consumed before the change.
    pub consumed: u64,
    /// Consumed before and coming again.
    pub again: u64,
    /// Neither consumed nor coming.
    pub never: u64,
}

struct Bits(Vec<u64>);

impl Bits {
    fn new(n: u64) -> Self {
        Bits(vec![0; n.div_ceil(64) as usize])
    }

    fn set(&mut self, range: Range<u64>) {
        for i in range {
            self.0[(i / 64) as usize] |= 1 << (i % 64);
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Compares `consumed` samples of the old order with the new order from sample `resume_at` on.
///
/// `lengths` are those of the dataset's sequences, `sequences` the split's.
///
/// # Errors
/// Indices that do not fit the lengths.
pub fn overlap(
    lengths: &[u32],
    sequences: Range<u64>,
    old: (&GptIndex, Range<u64>),
    new: (&GptIndex, Range<u64>),
) -> Result<Overlap, GptIndexError> {
    let inside = usize::try_from(sequences.start)
        .ok()
        .zip(usize::try_from(sequences.end).ok())
        .and_then(|(start, end)| lengths.get(start..end))
        .ok_or(GptIndexError::OutOfRange {
            low: sequences.start,
            high: sequences.end,
            num_sequences: lengths.len() as u64,
        })?;
    let mut starts = Vec::with_capacity(inside.len() + 1);
    let mut tokens = 0u64;
    for &length in inside {
        starts.push(tokens);
        tokens += u64::from(length);
    }
    starts.push(tokens);
    let mark = |index: &GptIndex, samples: Range<u64>| -> Result<Bits, GptIndexError> {
        let mut bits = Bits::new(tokens);
        for sample in samples {
            let Some(entry) = index.shuffle_index.get(sample) else {
                break;
            };
            for part in index.parts(entry, false)? {
                let part = part?;
                let bad =
                    || GptIndexError::Inconsistent(format!("sequence {} is not in the split", part.sequence));
                let at = part.sequence.checked_sub(sequences.start).ok_or_else(bad)? as usize;
                let (Some(&start), Some(&end)) = (starts.get(at), starts.get(at + 1)) else {
                    return Err(bad());
                };
                let first = (start + part.offset).min(end);
                let last = part.length.map_or(end, |n| (first + n).min(end));
                bits.set(first..last);
            }
        }
        Ok(bits)
    };
    let (before, after) = (mark(old.0, old.1)?, mark(new.0, new.1)?);
    let both = before
        .0
        .iter()
        .zip(&after.0)
        .map(|(a, b)| u64::from((a & b).count_ones()))
        .sum();
    let any: u64 = before
        .0
        .iter()
        .zip(&after.0)
        .map(|(a, b)| u64::from((a | b).count_ones()))
        .sum();
    Ok(Overlap {
        tokens,
        consumed: before.count(),
        again: both,
        never: tokens - any,
    })
}
