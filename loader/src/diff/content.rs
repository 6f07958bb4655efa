//! Do two datasets that share no sample hold the same text, cut otherwise?
//!
//! Runs of 16 tokens are looked for wherever they stand: those whose hash ends in six zero bits, about one in 64, so that
//! both sides choose the same ones. Reads up to 2^26 tokens of each side. Memory: 8 bytes a run chosen.

use std::collections::HashSet;

use super::side::Side;
use super::stats::mix;
use crate::source::SourceError;

const RUN: usize = 16;
const CHOSEN: u64 = 63;
const TOKENS: usize = 1 << 26;

/// Share of the first side's runs that the second one has too; `None` where tokens are missing or too few runs are
/// chosen to say.
///
/// # Errors
/// Samples that cannot be read.
pub fn share(a: &Side, b: &Side) -> Result<Option<f64>, SourceError> {
    let (Some(of_a), Some(of_b)) = (runs(a)?, runs(b)?) else {
        return Ok(None);
    };
    if of_a.len() < 4 || of_b.len() < 4 {
        return Ok(None);
    }
    let known = of_a.intersection(&of_b).count();
    // The smaller side decides: it may be a part of the larger one.
    Ok(Some(known as f64 / of_a.len().min(of_b.len()) as f64))
}

fn runs(side: &Side) -> Result<Option<HashSet<u64>>, SourceError> {
    let (mut found, mut buffer, mut read) = (HashSet::new(), Vec::new(), 0);
    for index in 0..side.layout.len() {
        if side.tokens(index, &mut buffer)?.is_none() {
            return Ok(None);
        }
        for run in buffer.windows(RUN) {
            let hash = run
                .iter()
                .fold(0u64, |hash, token| mix(hash ^ u64::from(token.unsigned_abs())));
            if hash & CHOSEN == 0 {
                found.insert(hash);
            }
        }
        read += buffer.len();
        if read > TOKENS {
            break;
        }
    }
    Ok(Some(found))
}
