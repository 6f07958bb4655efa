//! The document, sample and shuffle index of a Megatron GPT dataset.
//!
//! Reproduces Megatron-Core 0.19.2: `GPTDataset._build_document_sample_shuffle_indices` of `gpt_dataset.py` and
//! `build_sample_idx` of `helpers.cpp`, over numpy's legacy `RandomState`.
//!
//! Rule: the documents of all epochs are laid out in one shuffled row; sample `i` covers the tokens from `i * T` on
//! (and the one after its end, if the extra token is drawn); a second shuffle orders the samples. One generator
//! serves all draws: documents, then the last epoch's documents if that epoch is kept apart, then the samples in
//! one or two parts. The last epoch is kept apart when fewer than `int(0.80 * samples per epoch)` of its samples are
//! needed.
//! Bias: with several epochs the shuffle runs over all of them at once, so a document may come twice before
//! another comes once. "Documents" are stored sequences. Asking for more samples changes the order of all of them.
//! Memory: 4 bytes a document and epoch, 12 bytes a sample (16 + 8 where an index leaves 32 bits).

use std::ops::Range;

use crate::prefetch;
use crate::rng::RngError;
use crate::rng::numpy::RandomState;

use super::index_array::{Indices, SharedArray};
use super::megatron_epochs::{EpochRule, GptIndexSpec};

/// Documents from which a second thread costs less than it saves.
const SIDE_BY_SIDE: usize = 1 << 16;

/// How many documents ahead the walk fetches lengths: enough to cover the time that memory takes.
const AHEAD: usize = 32;

/// Why indices cannot be built or read. Megatron-Core asserts, loops forever or writes out of bounds in these cases.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GptIndexError {
    /// The sequence length is 0, or leaves 32 bits.
    #[error("sequence length {0} is not between 1 and 2147483646")]
    SequenceLength(u64),
    /// The range of sequences does not lie in the dataset.
    #[error("sequences {low}..{high} are not part of a dataset of {num_sequences}")]
    OutOfRange {
        /// First sequence.
        low: u64,
        /// One past the last sequence.
        high: u64,
        /// Sequences of the dataset.
        num_sequences: u64,
    },
    /// More sequences than a 32-bit document index can name.
    #[error("{0} sequences do not fit the 32-bit document index (at most 2147483647)")]
    TooManySequences(u64),
    /// A number of samples is asked of a split without tokens; Megatron would add epochs forever.
    #[error(
        "{num_samples} samples are asked of {num_sequences} sequences without a single token; Megatron would never \
         return. Give the split more data, or no weight"
    )]
    NoTokens {
        /// Samples asked for.
        num_samples: u64,
        /// Sequences in the split.
        num_sequences: u64,
    },
    /// More epochs than fit 32 bits.
    #[error(
        "{num_samples} samples of {sequence_length} tokens take {epochs} epochs of {tokens_per_epoch} tokens; at most 2147483647 are possible"
    )]
    TooManyEpochs {
        /// Samples asked for.
        num_samples: u64,
        /// Tokens of one sample.
        sequence_length: u64,
        /// Epochs that takes.
        epochs: u64,
        /// Tokens of one epoch.
        tokens_per_epoch: u64,
    },
    /// Megatron's own check of the last epoch fails.
    #[error(
        "{from_final_epoch} samples would come from the last epoch, which has {per_epoch}; Megatron stops here with an assertion"
    )]
    FinalEpoch {
        /// Samples the last epoch would give.
        from_final_epoch: i64,
        /// Samples of one epoch.
        per_epoch: i64,
    },
    /// The sample index would hold a negative offset or a negative number of samples.
    #[error("{0}; Megatron stops here with an assertion or writes out of bounds")]
    Negative(&'static str),
    /// The indices do not fit in memory.
    #[error("the {what} of {entries} entries cannot be held in memory")]
    TooLarge {
        /// Which index.
        what: &'static str,
        /// Entries it would have.
        entries: u128,
    },
    /// The generator refuses the seed.
    #[error(transparent)]
    Rng(#[from] RngError),
    /// Indices that do not fit each other or the dataset (read from a file that is damaged or belongs to other data).
    #[error("the indices do not fit the data: {0}")]
    Inconsistent(String),
}

/// Sample boundaries: position in the document index and token offset in that document, one entry more than samples.
#[derive(Clone, Debug)]
pub enum SampleIndex {
    /// 32-bit entries, as Megatron stores them while the document index has fewer than 2^31 entries.
    Narrow(SharedArray<[u32; 2]>),
    /// 64-bit entries.
    Wide(SharedArray<[u64; 2]>),
}

impl SampleIndex {
    /// Entries; samples are one fewer.
    pub fn len(&self) -> u64 {
        match self {
            SampleIndex::Narrow(v) => v.len(),
            SampleIndex::Wide(v) => v.len(),
        }
    }

    /// True without a single entry, which no built index is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entry `i`: (position in the document index, offset), `None` past the end.
    pub fn get(&self, i: u64) -> Option<(u64, u64)> {
        match self {
            SampleIndex::Narrow(v) => v.get(i).map(|[d, o]| (u64::from(d), u64::from(o))),
            SampleIndex::Wide(v) => v.get(i).map(|[d, o]| (d, o)),
        }
    }
}

/// One stretch of a stored sequence that a sample is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Sequence of the dataset.
    pub sequence: u64,
    /// First token.
    pub offset: u64,
    /// Tokens, `None` for all up to the sequence's end.
    pub length: Option<u64>,
}

/// The three indices of one GPT dataset and the rule that made them.
#[derive(Clone, Debug)]
pub struct GptIndex {
    /// Epochs and their treatment.
    pub rule: EpochRule,
    /// Sequences in the order they are laid out, all epochs.
    pub document_index: SharedArray<u32>,
    /// Where each sample starts.
    pub sample_index: SampleIndex,
    /// Order of the samples.
    pub shuffle_index: Indices,
}

impl GptIndex {
    /// Builds the indices over `sequences` of a dataset whose sequences have `lengths` tokens.
    ///
    /// # Errors
    /// [`GptIndexError`], see there.
    pub fn build(lengths: &[u32], sequences: Range<u64>, spec: &GptIndexSpec) -> Result<Self, GptIndexError> {
        let num_sequences = lengths.len() as u64;
        let Range {
            start: low,
            end: high,
        } = sequences;
        if low > high || high > num_sequences {
            return Err(GptIndexError::OutOfRange {
                low,
                high,
                num_sequences,
            });
        }
        if high > i32::MAX as u64 {
            return Err(GptIndexError::TooManySequences(high));
        }
        let tokens_per_epoch = lengths[low as usize..high as usize]
            .iter()
            .map(|&n| u64::from(n))
            .sum();
        let rule = EpochRule::new(tokens_per_epoch, high - low, spec)?;
        let num_samples = rule.num_samples(spec)?;

        let mut random = RandomState::from_seed(spec.random_seed.into())?;
        let document_index = build_document_index(low as u32..high as u32, &rule, &mut random)?;
        // The walk draws nothing and the shuffle looks at no document, so they run beside each other.
        let walk = || build_sample_index(lengths, &document_index, num_samples, spec);
        let (sample_index, shuffle_index) = if document_index.len() < SIDE_BY_SIDE {
            (walk(), build_shuffle_index(&rule, num_samples, &mut random))
        } else {
            std::thread::scope(|scope| {
                let walking = scope.spawn(walk);
                let shuffled = build_shuffle_index(&rule, num_samples, &mut random);
                let walked = walking
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                (walked, shuffled)
            })
        };
        let (sample_index, shuffle_index) = (sample_index?, shuffle_index?);
        Ok(GptIndex {
            rule,
            document_index: SharedArray::new(document_index),
            sample_index,
            shuffle_index,
        })
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.shuffle_index.len()
    }

    /// True when there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stretches that sample-index entry `entry` is made of (not shuffled: pass `shuffle_index.get(i)` for
    /// sample `i` of the dataset). Empty stretches are part of the list, as they are of the real sample.
    ///
    /// # Errors
    /// [`GptIndexError::Inconsistent`] when the entry does not exist or the indices do not fit each other.
    pub fn parts(
        &self,
        entry: u64,
        add_extra_token: bool,
    ) -> Result<impl Iterator<Item = Result<Part, GptIndexError>> + '_, GptIndexError> {
        let extra = u64::from(add_extra_token);
        let bound = |i: u64| {
            self.sample_index.get(i).ok_or_else(|| {
                GptIndexError::Inconsistent(format!(
                    "sample index has {} entries, entry {i} is asked for",
                    self.sample_index.len()
                ))
            })
        };
        let ((first, first_offset), (last, last_offset)) = (bound(entry)?, bound(entry + 1)?);
        let documents = self.document_index.len();
        if first > last || last >= documents || (first == last && last_offset < first_offset) {
            return Err(GptIndexError::Inconsistent(format!(
                "sample {entry} runs from document {first} offset {first_offset} to document {last} offset \
                 {last_offset}, in a document index of {documents}"
            )));
        }
        Ok((first..=last).map(move |at| {
            let offset = if at == first { first_offset } else { 0 };
            let sequence = self.document_index.get(at).ok_or_else(|| {
                GptIndexError::Inconsistent(format!("document index entry {at} can no longer be read"))
            })?;
            Ok(Part {
                sequence: u64::from(sequence),
                offset,
                length: (at == last).then(|| last_offset - offset + extra),
            })
        }))
    }
}

fn reserve<T>(entries: u64, what: &'static str) -> Result<Vec<T>, GptIndexError> {
    let too_large = || GptIndexError::TooLarge {
        what,
        entries: u128::from(entries),
    };
    let mut values = Vec::new();
    values
        .try_reserve_exact(usize::try_from(entries).map_err(|_| too_large())?)
        .map_err(|_| too_large())?;
    prefetch::advise_huge_pages(&mut values);
    Ok(values)
}

/// Lays the sequences out for every epoch and shuffles them, the last epoch on its own if it is kept apart.
fn build_document_index(
    sequences: Range<u32>,
    rule: &EpochRule,
    random: &mut RandomState,
) -> Result<Vec<u32>, GptIndexError> {
    let per_epoch = sequences.len() as u64;
    let entries = per_epoch
        .checked_mul(rule.num_epochs)
        .ok_or(GptIndexError::TooLarge {
            what: "document index",
            entries: u128::from(per_epoch) * u128::from(rule.num_epochs),
        })?;
    let mut documents = reserve(entries, "document index")?;
    for _ in 0..rule.num_epochs {
        documents.extend(sequences.clone());
    }
    let together = if rule.separate_final_epoch == Some(true) {
        entries - per_epoch
    } else {
        entries
    };
    let (first, last) = documents.split_at_mut(together as usize);
    random.shuffle(first);
    random.shuffle(last);
    Ok(documents)
}

/// Finds where each sample starts.
///
/// Sample `i` starts behind the token that ends sample `i - 1`; with the extra token it starts *at* that token. So
/// entry `i > 0` is the document holding token `i * T - 1` (or `i * T`), which skips empty documents by itself.
///
/// `document_index` lists sequences in the order they are laid out; `num_samples` is [`EpochRule::num_samples`].
///
/// # Errors
/// [`GptIndexError`] when the index cannot be held, or the partial last sample would end before a document starts.
pub fn build_sample_index(
    lengths: &[u32],
    document_index: &[u32],
    num_samples: u64,
    spec: &GptIndexSpec,
) -> Result<SampleIndex, GptIndexError> {
    let widest = (document_index.len() as u64).max(lengths.iter().copied().max().unwrap_or(0).into());
    if widest <= i32::MAX as u64 {
        let mut entries = reserve::<[u32; 2]>(num_samples + 1, "sample index")?;
        // Both fit: documents are counted in 31 bits here, and so is every length.
        walk_samples(lengths, document_index, num_samples, spec, |d, o| {
            entries.push([d as u32, o as u32])
        })?;
        Ok(SampleIndex::Narrow(SharedArray::new(entries)))
    } else {
        let mut entries = reserve::<[u64; 2]>(num_samples + 1, "sample index")?;
        walk_samples(lengths, document_index, num_samples, spec, |d, o| {
            entries.push([d, o])
        })?;
        Ok(SampleIndex::Wide(SharedArray::new(entries)))
    }
}

fn walk_samples(
    lengths: &[u32],
    document_index: &[u32],
    num_samples: u64,
    spec: &GptIndexSpec,
    mut emit: impl FnMut(u64, u64),
) -> Result<(), GptIndexError> {
    let seq = spec.sequence_length;
    let before = u64::from(!spec.add_extra_token);
    emit(0, 0);
    let mut left = num_samples;
    // Token that decides the next entry, counted from the first token of the current document.
    let mut token = seq - before;
    for (position, &document) in document_index.iter().enumerate() {
        if left == 0 {
            break;
        }
        if let Some(&later) = document_index.get(position + AHEAD) {
            prefetch::entry(lengths, later as usize);
        }
        let length = u64::from(lengths[document as usize]);
        while token < length && left > 0 {
            emit(position as u64, token + before);
            left -= 1;
            token += seq;
        }
        token = token.wrapping_sub(length);
    }
    if left > 0 {
        // Only where the partial sequence is kept: what is left ends with the last document.
        let (position, length) = match document_index.last() {
            Some(&document) => (
                document_index.len() as u64 - 1,
                u64::from(lengths[document as usize]),
            ),
            None => return Err(GptIndexError::Negative("a split without sequences has samples")),
        };
        let Some(offset) = length.checked_sub(u64::from(spec.add_extra_token)) else {
            return Err(GptIndexError::Negative(
                "the partial last sample ends in an empty document, one token before its start",
            ));
        };
        (0..left).for_each(|_| emit(position, offset));
    }
    Ok(())
}

/// Shuffles the samples, in two parts where the last epoch is kept apart.
fn build_shuffle_index(
    rule: &EpochRule,
    num_samples: u64,
    random: &mut RandomState,
) -> Result<Indices, GptIndexError> {
    let first = rule
        .samples_sans_final_epoch
        .unwrap_or(num_samples)
        .min(num_samples);
    if num_samples < u64::from(u32::MAX) - 1 {
        let mut samples = reserve::<u32>(num_samples, "shuffle index")?;
        samples.extend(0..num_samples as u32);
        let (a, b) = samples.split_at_mut(first as usize);
        random.shuffle(a);
        random.shuffle(b);
        Ok(Indices::Narrow(SharedArray::new(samples)))
    } else {
        let mut samples = reserve::<u64>(num_samples, "shuffle index")?;
        samples.extend(0..num_samples);
        let (a, b) = samples.split_at_mut(first as usize);
        random.shuffle(a);
        random.shuffle(b);
        Ok(Indices::Wide(SharedArray::new(samples)))
    }
}
