//! Reads every row a stream will use, once, before anything is written.

use std::sync::atomic::{AtomicU64, Ordering};

use ceteris_samplers::{Order, OrderError, Place};
use rayon::prelude::*;

use super::failure::Failure;
use super::plan::Plan;
use super::progress::Progress;
use crate::source::Source;

/// 64-bit words of marks, one bit a row, that one parallel task reads.
const WORDS_A_TASK: usize = 4;

/// Which samples, one bit each.
struct Marks(Vec<AtomicU64>);

impl Marks {
    fn new(len: u64) -> Self {
        Self((0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, sample: u64) {
        if let Some(word) = self.0.get((sample / 64) as usize) {
            word.fetch_or(1 << (sample % 64), Ordering::Relaxed);
        }
    }

    fn count(&self) -> u64 {
        self.0
            .iter()
            .map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()))
            .sum()
    }

    /// Marked samples of the words from `first` on, ascending.
    fn of_words(first: usize, words: &[AtomicU64]) -> impl Iterator<Item = u64> {
        words.iter().enumerate().flat_map(move |(i, word)| {
            let (base, word) = ((first + i) as u64 * 64, word.load(Ordering::Relaxed));
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| base + bit)
        })
    }
}

/// Reads the rows in parallel, in the sequence they are stored; the error is that of the first bad row.
///
/// # Errors
/// What is wrong with the first bad row.
pub fn check_rows(
    source: &dyn Source,
    order: &dyn Order,
    plan: &Plan,
    ranks: &[u64],
    seq_length: usize,
    quiet: bool,
) -> Result<(), Failure> {
    let marks = Marks::new(source.num_samples());
    let micro_batch_size = order.geometry().micro_batch_size;
    for epoch in plan.epochs() {
        let index = order.epoch(epoch)?;
        let look = |micro_step| -> Result<(), OrderError> {
            let slots = ranks
                .iter()
                .flat_map(|&rank| (0..micro_batch_size).map(move |slot| (rank, slot)));
            for (rank, slot) in slots {
                let place = Place {
                    micro_step,
                    rank,
                    slot,
                };
                if let Some(sample) = index.checked_sample(place)? {
                    marks.set(sample);
                }
            }
            Ok(())
        };
        plan.micro_steps_of(epoch).into_par_iter().try_for_each(look)?;
        if marks.count() == source.num_samples() {
            break;
        }
    }
    let progress = Progress::tokens("checking rows", marks.count() * seq_length as u64, quiet);
    let tasks = marks.0.par_chunks(WORDS_A_TASK).enumerate();
    let first_bad = tasks.find_map_first(|(task, words)| {
        let (mut row, mut read) = (vec![0; seq_length], 0);
        let error = Marks::of_words(task * WORDS_A_TASK, words).find_map(|sample| {
            read += seq_length as u64;
            source.read(sample, &mut row).err()
        });
        progress.add(read);
        error
    });
    progress.finish();
    match first_bad {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_out_ascending_and_once() {
        let marks = Marks::new(130);
        for sample in [129, 0, 64, 0, 63] {
            marks.set(sample);
        }
        assert_eq!(Marks::of_words(0, &marks.0).collect::<Vec<_>>(), [0, 63, 64, 129]);
        assert_eq!(Marks::of_words(1, &marks.0[1..]).collect::<Vec<_>>(), [64, 129]);
        assert_eq!((marks.count(), Marks::new(0).count()), (4, 0));
    }
}
