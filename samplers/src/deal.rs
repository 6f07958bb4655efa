//! Deals: how an epoch's list of `n` entries is handed to places.
//!
//! With `W` ranks, micro-batch `B` and micro-step `m`, place `(m, rank, slot)` takes list entry `k mod n`:
//!
//! - **strided**, `k = (m·B + slot)·W + rank`: torch 2.15.0 `DistributedSampler` cut into batches of `B`.
//!   Pads to a multiple of `W` by starting over, several times when `n < W`; the last micro-batch may be short.
//! - **blocked**, `k = m·B·W + rank·B + slot`: accelerate 1.15.0 `BatchSamplerShard` over a `BatchSampler`.
//!   `even_batches` pads to a multiple of `B·W`, `drop_last` cuts to one, neither leaves the tail ragged: some
//!   ranks then have a short batch, or none.
//!
//! `BatchSamplerShard(split_batches=True)` is the blocked deal with `micro_batch_size / W` in place of `B`:
//! every case of it (padding, dropping, ragged tail) comes out the same.
//!
//! Stateless: no memory, every look-up is a handful of integer operations.

use crate::place::{Geometry, Place};

/// What happens at the end of an epoch that does not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Fill up with entries from the start of the list.
    Pad,
    /// Leave out the entries that do not fill a row of the deal.
    Drop,
    /// Deal out every entry once; the last micro-batches are short or missing on some ranks.
    Ragged,
}

/// Which entry goes to which place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Entry by entry round the ranks.
    Strided,
    /// Micro-batch by micro-batch round the ranks.
    Blocked,
}

/// A deal of a list of known length over a geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deal {
    law: Law,
    geometry: Geometry,
    /// Entries of the list.
    len: u64,
    /// Deal indices `< end` are consumed.
    end: u64,
}

impl Deal {
    /// The deal of `len` entries. The geometry must have passed [`Geometry::check`].
    ///
    /// For the strided law a row is one entry a rank, for the blocked law one micro-batch a rank.
    /// `None` when the padded length does not fit an u64.
    pub fn new(law: Law, tail: Tail, geometry: Geometry, len: u64) -> Option<Self> {
        let row = match law {
            Law::Strided => geometry.world_size,
            Law::Blocked => geometry.samples_per_micro_step(),
        };
        let end = match tail {
            Tail::Pad => len.checked_next_multiple_of(row)?,
            Tail::Drop => len - len % row,
            Tail::Ragged => len,
        };
        Some(Deal {
            law,
            geometry,
            len,
            end,
        })
    }

    /// The layout over ranks.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Number of deal indices consumed, padding included.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Places filled by repeating the start of the list.
    pub fn num_padded(&self) -> u64 {
        self.end.saturating_sub(self.len)
    }

    /// Entries of the list that no place consumes.
    pub fn num_dropped(&self) -> u64 {
        self.len.saturating_sub(self.end)
    }

    /// Micro-steps of the epoch: as many as the rank with the most has.
    pub fn micro_steps(&self) -> u64 {
        // Under both laws a micro-step covers a run of B·W deal indices.
        self.end.div_ceil(self.geometry.samples_per_micro_step())
    }

    /// Optimizer steps when accumulation is closed at the end of the epoch, as transformers' Trainer does.
    pub fn steps(&self) -> u64 {
        self.micro_steps()
            .div_ceil(self.geometry.gradient_accumulation_steps)
    }

    /// Optimizer step a micro-step belongs to.
    pub fn step_of(&self, micro_step: u64) -> u64 {
        micro_step / self.geometry.gradient_accumulation_steps
    }

    /// Deal index of a place, `None` when the place is past the end or outside the geometry.
    pub fn index(&self, place: Place) -> Option<u64> {
        let Geometry {
            world_size,
            micro_batch_size,
            ..
        } = self.geometry;
        if place.rank >= world_size || place.slot >= micro_batch_size {
            return None;
        }
        let start = place
            .micro_step
            .checked_mul(self.geometry.samples_per_micro_step())?;
        let within = match self.law {
            Law::Strided => place.slot * world_size + place.rank,
            Law::Blocked => place.rank * micro_batch_size + place.slot,
        };
        start.checked_add(within).filter(|k| *k < self.end)
    }

    /// The place that consumes deal index `k`, `None` past the end.
    pub fn place(&self, k: u64) -> Option<Place> {
        if k >= self.end {
            return None;
        }
        let row = self.geometry.samples_per_micro_step();
        let (micro_step, within) = (k / row, k % row);
        let (rank, slot) = match self.law {
            Law::Strided => (
                within % self.geometry.world_size,
                within / self.geometry.world_size,
            ),
            Law::Blocked => (
                within / self.geometry.micro_batch_size,
                within % self.geometry.micro_batch_size,
            ),
        };
        Some(Place {
            micro_step,
            rank,
            slot,
        })
    }

    /// List entry of a deal index below [`Deal::end`].
    pub fn entry(&self, k: u64) -> u64 {
        // Padding is rare: a comparison is cheaper than a division on every look-up.
        if k < self.len { k } else { k % self.len.max(1) }
    }

    /// The deal index repeats an entry.
    pub fn is_padding(&self, k: u64) -> bool {
        k >= self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(world_size: u64, micro_batch_size: u64, gradient_accumulation_steps: u64) -> Geometry {
        Geometry {
            world_size,
            micro_batch_size,
            gradient_accumulation_steps,
        }
    }

    #[test]
    fn every_deal_index_has_one_place_and_no_other_place_has_one() {
        for law in [Law::Strided, Law::Blocked] {
            for tail in [Tail::Pad, Tail::Drop, Tail::Ragged] {
                for n in 0..40 {
                    for (w, b) in [(1, 1), (1, 4), (3, 1), (3, 4), (7, 2), (50, 1)] {
                        let deal = Deal::new(law, tail, geometry(w, b, 1), n).unwrap();
                        let mut seen = vec![0; deal.end() as usize];
                        for micro_step in 0..deal.micro_steps() + 2 {
                            for rank in 0..w + 1 {
                                for slot in 0..b + 1 {
                                    let place = Place {
                                        micro_step,
                                        rank,
                                        slot,
                                    };
                                    if let Some(k) = deal.index(place) {
                                        seen[k as usize] += 1;
                                        assert_eq!(deal.place(k), Some(place));
                                        assert!(deal.entry(k) < n);
                                    }
                                }
                            }
                        }
                        assert!(seen.iter().all(|s| *s == 1), "{law:?} {tail:?} n={n} w={w} b={b}");
                        assert_eq!(deal.place(deal.end()), None);
                        assert_eq!(deal.end() + deal.num_dropped(), n + deal.num_padded());
                    }
                }
            }
        }
    }

    #[test]
    fn accumulation_is_closed_at_the_end_of_an_epoch() {
        // transformers' Trainer: 103 samples, 2 ranks, micro-batch 4 are 13 micro-steps, 5 steps of up to 3.
        let deal = Deal::new(Law::Blocked, Tail::Pad, geometry(2, 4, 3), 103).unwrap();
        assert_eq!((deal.micro_steps(), deal.steps(), deal.step_of(12)), (13, 5, 4));
    }

    #[test]
    fn places_far_past_the_end_do_not_overflow() {
        let deal = Deal::new(Law::Blocked, Tail::Pad, geometry(8, 4, 1), 1000).unwrap();
        let place = Place {
            micro_step: u64::MAX,
            rank: 7,
            slot: 3,
        };
        assert_eq!(deal.index(place), None);
        assert!(Deal::new(Law::Blocked, Tail::Pad, geometry(8, 4, 1), u64::MAX).is_none());
    }
}
