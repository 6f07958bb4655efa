//! Reads every row a stream will use, once, before anything is written.

use std::sync::atomic::{AtomicU64, Ordering};

use ceteris_samplers::{Order, Place};
use rayon::prelude::*;

use super::failure::Failure;
use super::progress::Progress;
use crate::source::Source;

/// Rows of one parallel task.
const ROWS_A_TASK: usize = 256;

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

    fn list(&self) -> Vec<u64> {
        let words = self
            .0
            .iter()
            .enumerate()
            .map(|(i, word)| (i as u64 * 64, word.load(Ordering::Relaxed)));
        words
            .flat_map(|(base, word)| {
                (0..64)
                    .filter(move |bit| word >> bit & 1 == 1)
                    .map(move |bit| base + bit)
            })
            .collect()
    }
}

/// Reads the rows in parallel, in the sequence they lie on disk; the error is that of the first bad row.
///
/// # Errors
/// What is wrong with the first bad row.
pub fn check_rows(
    source: &dyn Source,
    order: &dyn Order,
    plan: &super::plan::Plan,
    ranks: &[u64],
    seq_length: usize,
    quiet: bool,
) -> Result<(), Failure> {
    let marks = Marks::new(source.num_samples());
    for epoch in plan.epochs() {
        let index = order.epoch(epoch)?;
        plan.micro_steps_of(epoch).into_par_iter().for_each(|micro_step| {
            for &rank in ranks {
                for slot in 0..order.geometry().micro_batch_size {
                    if let Some(sample) = index.sample(Place {
                        micro_step,
                        rank,
                        slot,
                    }) {
                        marks.set(sample);
                    }
                }
            }
        });
    }
    let samples = marks.list();
    let progress = Progress::tokens("checking rows", samples.len() as u64 * seq_length as u64, quiet);
    let first_bad = samples.par_chunks(ROWS_A_TASK).find_map_first(|samples| {
        let mut row = vec![0; seq_length];
        let error = samples
            .iter()
            .find_map(|&sample| source.read(sample, &mut row).err());
        progress.add((samples.len() * seq_length) as u64);
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
        assert_eq!(marks.list(), [0, 63, 64, 129]);
        assert_eq!(Marks::new(0).list(), [0u64; 0]);
    }
}
