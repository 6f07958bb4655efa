//! Which samples each data-parallel rank takes from a Megatron dataset, batch by batch.
//!
//! Reproduces `MegatronPretrainingSampler` and `MegatronPretrainingRandomSampler` of Megatron-LM at d98e8a64
//! (`megatron/training/datasets/data_samplers.py`), over torch's `randperm`.
//!
//! Rule: the plain sampler goes through the dataset in order, a global batch at a time, rank after rank. The random
//! one shuffles anew each epoch, seeded by the epoch's number alone: with data sharding inside a bucket per rank,
//! without it over the whole dataset, dealt round the ranks.
//! Bias: the random sampler's seed is the epoch, so every run, whatever its seed, has the same permutations; with
//! data sharding a rank never sees another rank's bucket.
//! Memory: none for the plain sampler; 4 bytes a sample of the bucket (or dataset) for an epoch of the random one.

use std::ops::Range;

use crate::permute::Permutation;
use crate::rng::RngError;
use crate::rng::torch::TorchGenerator;

/// Why a sampler cannot start. The original asserts in the same cases.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplerError {
    /// Nothing to sample from.
    #[error("the dataset has no sample")]
    Empty,
    /// The run has consumed the dataset already.
    #[error("no sample is left: {consumed} were consumed of {total}")]
    Consumed {
        /// Samples consumed.
        consumed: u64,
        /// Samples there are.
        total: u64,
    },
    /// A layout with a zero in it, or one that overflows.
    #[error("micro_batch_size {micro_batch_size} times {data_parallel_size} ranks is no usable batch")]
    Layout {
        /// Samples of one rank's batch.
        micro_batch_size: u64,
        /// Ranks.
        data_parallel_size: u64,
    },
    /// The random sampler deals whole global batches only, and there is not one.
    #[error("{total} samples do not fill one batch of {batch} over all ranks")]
    NoBatch {
        /// Samples there are.
        total: u64,
        /// Samples of a batch over all ranks.
        batch: u64,
    },
    /// The random sampler stands inside a batch.
    #[error(
        "{consumed} consumed samples stand {within} samples into an epoch of {epoch}, which is no multiple of the \
         batch of {batch} over all ranks; the run used another batch size or number of ranks"
    )]
    InsideBatch {
        /// Samples consumed.
        consumed: u64,
        /// Of these, in the current epoch.
        within: u64,
        /// Samples of an epoch.
        epoch: u64,
        /// Samples of a batch over all ranks.
        batch: u64,
    },
    /// The permutation cannot be held.
    #[error(transparent)]
    Rng(#[from] RngError),
}

fn batch_of(micro_batch_size: u64, data_parallel_size: u64) -> Result<u64, SamplerError> {
    micro_batch_size
        .checked_mul(data_parallel_size)
        .filter(|&batch| batch > 0)
        .ok_or(SamplerError::Layout {
            micro_batch_size,
            data_parallel_size,
        })
}

/// `MegatronPretrainingSampler` for all its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PretrainingSampler {
    total: u64,
    consumed: u64,
    micro_batch_size: u64,
    batch: u64,
    drop_last: bool,
}

impl PretrainingSampler {
    /// A sampler over `total` samples of which `consumed` are behind it.
    ///
    /// # Errors
    /// [`SamplerError`] where the original asserts.
    pub fn new(
        total: u64,
        consumed: u64,
        micro_batch_size: u64,
        data_parallel_size: u64,
        drop_last: bool,
    ) -> Result<Self, SamplerError> {
        let batch = batch_of(micro_batch_size, data_parallel_size)?;
        if total == 0 {
            return Err(SamplerError::Empty);
        }
        if consumed >= total {
            return Err(SamplerError::Consumed { consumed, total });
        }
        Ok(PretrainingSampler {
            total,
            consumed,
            micro_batch_size,
            batch,
            drop_last,
        })
    }

    /// Batches every rank yields; without `drop_last` the last one may be short or empty.
    pub fn batches(&self) -> u64 {
        let left = self.total - self.consumed;
        if self.drop_last {
            left / self.batch
        } else {
            left.div_ceil(self.batch)
        }
    }

    /// Samples of the dataset that no batch holds.
    pub fn dropped(&self) -> Range<u64> {
        let end = if self.drop_last {
            self.consumed + self.batches() * self.batch
        } else {
            self.total
        };
        end..self.total
    }

    /// Samples of batch `batch` on `rank`, empty past the end.
    pub fn batch(&self, batch: u64, rank: u64) -> Range<u64> {
        if batch >= self.batches() {
            return self.total..self.total;
        }
        let start = self.consumed + batch * self.batch + rank * self.micro_batch_size;
        start.min(self.total)..(start + self.micro_batch_size).min(self.total)
    }
}

/// `MegatronPretrainingRandomSampler` for all its ranks: one pass over it is the rest of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    total: u64,
    micro_batch_size: u64,
    data_parallel_size: u64,
    batch: u64,
    data_sharding: bool,
}

impl RandomSampler {
    /// A sampler over `total` samples.
    ///
    /// # Errors
    /// [`SamplerError`] where the original asserts or divides by zero.
    pub fn new(
        total: u64,
        micro_batch_size: u64,
        data_parallel_size: u64,
        data_sharding: bool,
    ) -> Result<Self, SamplerError> {
        let batch = batch_of(micro_batch_size, data_parallel_size)?;
        if total == 0 {
            return Err(SamplerError::Empty);
        }
        if total < batch {
            return Err(SamplerError::NoBatch { total, batch });
        }
        Ok(RandomSampler {
            total,
            micro_batch_size,
            data_parallel_size,
            batch,
            data_sharding,
        })
    }

    /// Samples of an epoch: whole batches only.
    pub fn epoch_size(&self) -> u64 {
        self.total - self.total % self.batch
    }

    /// Epoch that `consumed` samples lead to, and the samples of it already consumed.
    ///
    /// # Errors
    /// [`SamplerError::InsideBatch`] when these are no whole batches.
    pub fn locate(&self, consumed: u64) -> Result<(u64, u64), SamplerError> {
        let size = self.epoch_size();
        let (epoch, within) = (consumed / size, consumed % size);
        if within % self.batch != 0 {
            return Err(SamplerError::InsideBatch {
                consumed,
                within,
                epoch: size,
                batch: self.batch,
            });
        }
        Ok((epoch, within))
    }

    /// Samples that are shuffled together: a rank's bucket, or all whole micro-batches.
    pub fn bucket(&self) -> u64 {
        if self.data_sharding {
            self.total / self.batch * self.micro_batch_size
        } else {
            self.total / self.micro_batch_size * self.micro_batch_size
        }
    }

    /// The permutation of epoch `epoch`, [`RandomSampler::bucket`] entries.
    ///
    /// # Errors
    /// [`RngError`] when it cannot be held.
    pub fn permutation(&self, epoch: u64) -> Result<Permutation, SamplerError> {
        Ok(TorchGenerator::new(epoch).randperm(self.bucket())?)
    }

    /// Entry of the permutation, and sample offset to add, of slot `slot` in batch `batch` on `rank`, when the pass
    /// starts `within` samples into its epoch. `None` past the pass's end.
    pub fn entry(&self, within: u64, batch: u64, rank: u64, slot: u64) -> Option<(u64, u64)> {
        if batch >= self.batches(within, rank) || slot >= self.micro_batch_size {
            return None;
        }
        let i = batch * self.micro_batch_size + slot;
        Some(if self.data_sharding {
            (within / self.data_parallel_size + i, rank * self.bucket())
        } else {
            (within + rank + i * self.data_parallel_size, 0)
        })
    }

    /// Batches of `rank` in a pass that starts `within` samples into its epoch. Without data sharding the first ranks
    /// may have one more than the others: the original's ranks then fall out of step.
    pub fn batches(&self, within: u64, rank: u64) -> u64 {
        let left = if self.data_sharding {
            self.bucket().saturating_sub(within / self.data_parallel_size)
        } else {
            self.bucket()
                .saturating_sub(within + rank)
                .div_ceil(self.data_parallel_size)
        };
        left / self.micro_batch_size
    }

    /// True when every rank has the same number of batches in an epoch.
    pub fn is_even(&self) -> bool {
        // The first rank has the most.
        self.batches(0, 0) == self.epoch_size() / self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_last_batch_is_cut_rank_by_rank() {
        let sampler = PretrainingSampler::new(10, 0, 2, 3, false).unwrap();
        assert_eq!(sampler.batches(), 2);
        assert_eq!(
            (sampler.batch(1, 0), sampler.batch(1, 1), sampler.batch(1, 2)),
            (6..8, 8..10, 10..10)
        );
        let dropping = PretrainingSampler::new(10, 0, 2, 3, true).unwrap();
        assert_eq!((dropping.batches(), dropping.dropped()), (1, 6..10));
        assert!(dropping.batch(1, 0).is_empty());
    }

    #[test]
    fn where_the_original_asserts() {
        assert_eq!(
            PretrainingSampler::new(0, 0, 1, 1, true),
            Err(SamplerError::Empty)
        );
        assert!(matches!(
            PretrainingSampler::new(5, 5, 1, 1, true),
            Err(SamplerError::Consumed { .. })
        ));
        assert!(matches!(
            PretrainingSampler::new(5, 0, 0, 1, true),
            Err(SamplerError::Layout { .. })
        ));
        assert!(matches!(
            RandomSampler::new(5, 4, 2, true),
            Err(SamplerError::NoBatch { .. })
        ));
        let sampler = RandomSampler::new(20, 4, 2, true).unwrap();
        assert!(matches!(sampler.locate(4), Err(SamplerError::InsideBatch { .. })));
        assert_eq!(sampler.locate(24).unwrap(), (1, 8));
    }

    #[test]
    fn ranks_can_fall_out_of_step_without_sharding() {
        assert!(!RandomSampler::new(7, 1, 3, false).unwrap().is_even());
        assert!(RandomSampler::new(7, 1, 3, true).unwrap().is_even());
        assert!(RandomSampler::new(74, 5, 3, false).unwrap().is_even());
    }
}
