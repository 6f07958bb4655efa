//! Places of streams that every rank reads for itself, batch by batch.
//!
//! What a torch 2.15.0 `DataLoader` over an `IterableDataset` hands out: each worker makes batches of its own stream,
//! the last one short (or dropped), and the batches of a rank's workers come in turn until all streams have ended. So
//! a batch may be short in mid-epoch. Deal indices count places by micro-step, rank and slot.
//!
//! Memory: 4 bytes a batch (8 from 2^32 rows on). Finding the place of a deal index takes a binary search.

use crate::permute::Permutation;
use crate::place::{Geometry, Place};

/// A run of rows of one stream that makes one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Which stream of the rank.
    pub stream: usize,
    /// First row of the batch in the stream.
    pub start: u64,
    /// Rows.
    pub len: u64,
}

/// Batches of one rank, in order, of streams with these lengths.
pub(crate) fn batches(lens: &[u64], micro_batch_size: u64, drop_last: bool) -> Vec<Batch> {
    let mut left: Vec<(usize, u64)> = lens.iter().copied().enumerate().collect();
    let mut all = Vec::new();
    for start in (0..).step_by(usize::try_from(micro_batch_size).unwrap_or(usize::MAX)) {
        left.retain(|(_, len)| *len > start && (!drop_last || *len - start >= micro_batch_size));
        if left.is_empty() {
            return all;
        }
        all.extend(left.iter().map(|&(stream, len)| Batch {
            stream,
            start,
            len: (len - start).min(micro_batch_size),
        }));
    }
    all
}

/// Which deal indices each micro-step of each rank consumes.
#[derive(Clone, Debug)]
pub(crate) struct BatchTable {
    geometry: Geometry,
    /// First deal index of micro-step `m` on rank `r` at `m * world_size + r`, and the end of all behind them.
    starts: Permutation,
}

impl BatchTable {
    /// The table of every rank's batches.
    pub fn new(geometry: Geometry, ranks: &[Vec<Batch>]) -> Self {
        let mut starts = vec![0];
        let mut end = 0;
        for micro_step in 0..ranks.iter().map(Vec::len).max().unwrap_or(0) {
            for batches in ranks {
                end += batches.get(micro_step).map_or(0, |batch| batch.len);
                starts.push(end);
            }
        }
        BatchTable {
            geometry,
            starts: Permutation::from_indices(starts),
        }
    }

    /// Deal indices consumed.
    pub fn end(&self) -> u64 {
        self.starts.get(self.starts.len() - 1).unwrap_or(0)
    }

    /// Micro-steps, as many as the rank with the most has.
    pub fn micro_steps(&self) -> u64 {
        (self.starts.len() - 1) / self.geometry.world_size
    }

    /// Deal index of a place, `None` past the end of its batch.
    pub fn index(&self, place: Place) -> Option<u64> {
        if place.rank >= self.geometry.world_size {
            return None;
        }
        let at = place
            .micro_step
            .checked_mul(self.geometry.world_size)?
            .checked_add(place.rank)?;
        let (start, end) = (self.starts.get(at)?, self.starts.get(at.checked_add(1)?)?);
        start.checked_add(place.slot).filter(|k| *k < end)
    }

    /// The place that consumes deal index `k`, `None` past the end.
    pub fn place(&self, k: u64) -> Option<Place> {
        if k >= self.end() {
            return None;
        }
        // The last batch that starts at or before `k`: empty ones start where the next one does.
        let (mut low, mut high) = (0, self.starts.len() - 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.starts.get(middle)? <= k {
                low = middle
            } else {
                high = middle
            }
        }
        Some(Place {
            micro_step: low / self.geometry.world_size,
            rank: low % self.geometry.world_size,
            slot: k - self.starts.get(low)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(lens: &[u64], b: u64, drop_last: bool) -> Vec<(usize, u64, u64)> {
        batches(lens, b, drop_last)
            .iter()
            .map(|x| (x.stream, x.start, x.len))
            .collect()
    }

    #[test]
    fn workers_take_turns_and_the_longer_ones_go_on() {
        assert_eq!(
            runs(&[5, 0, 9], 4, false),
            [(0, 0, 4), (2, 0, 4), (0, 4, 1), (2, 4, 4), (2, 8, 1)]
        );
        assert_eq!(runs(&[5, 0, 9], 4, true), [(0, 0, 4), (2, 0, 4), (2, 4, 4)]);
        assert_eq!(runs(&[], 4, false), []);
    }

    #[test]
    fn indices_and_places_are_inverse_with_empty_batches_between() {
        let geometry = Geometry {
            world_size: 3,
            micro_batch_size: 2,
            gradient_accumulation_steps: 1,
        };
        let ranks: Vec<Vec<Batch>> = [&[3, 1][..], &[], &[7]]
            .map(|lens| batches(lens, 2, false))
            .to_vec();
        let table = BatchTable::new(geometry, &ranks);
        assert_eq!((table.end(), table.micro_steps()), (11, 4));
        let mut seen = 0;
        for micro_step in 0..5 {
            for rank in 0..4 {
                for slot in 0..3 {
                    let place = Place {
                        micro_step,
                        rank,
                        slot,
                    };
                    if let Some(k) = table.index(place) {
                        assert_eq!((k, table.place(k)), (seen, Some(place)));
                        seen += 1;
                    }
                }
            }
        }
        assert_eq!((seen, table.place(11)), (11, None));
    }
}
