//! Samplers: the list of positions an epoch goes through before it is dealt out.
//!
//! The laws that several orders share stand here; a law of one order stands in that order's file.

use std::fmt;
use std::sync::Arc;

use crate::permute::Permutation;
use crate::rng::torch::{RANDPERM_SWITCH, TorchGenerator};
use crate::spec::{OrderError, Seed};

/// The list of one epoch, a pure function of the epoch and the number of positions.
pub trait Sampler: Send + Sync + fmt::Debug {
    /// Entries of every epoch's list.
    fn len(&self, positions: u64) -> u64 {
        positions
    }

    /// The list of epoch `epoch`: [`Sampler::len`] entries, each below `positions`.
    ///
    /// # Errors
    /// [`OrderError`] when the emulated sampler would raise.
    fn list(&self, epoch: u64, positions: u64) -> Result<Arc<Permutation>, OrderError>;

    /// The list is the same for every layout over ranks.
    fn is_elastic(&self) -> bool {
        true
    }
}

/// `0, 1, …, n-1` in every epoch.
#[derive(Clone, Copy, Debug)]
pub struct Sequential;

impl Sampler for Sequential {
    fn list(&self, _epoch: u64, positions: u64) -> Result<Arc<Permutation>, OrderError> {
        Ok(Arc::new(Permutation::Identity(positions)))
    }
}

/// `torch.randperm(n)` of a generator seeded with `seed + epoch`: torch 2.15.0 `DistributedSampler` and
/// accelerate 1.15.0 `SeedableRandomSampler`.
///
/// Bias: of the `n!` orders at most 2^32 can come out, because only the low 32 bits of the sum reach the
/// engine; and each step takes a plain modulo, so small offsets are drawn slightly more often.
#[derive(Clone, Copy, Debug)]
pub struct TorchEpochSeed {
    /// The seed of epoch 0.
    pub seed: Seed,
    /// The run tells its sampler the epoch. When it does not, every epoch has epoch 0's list.
    pub epoch_is_set: bool,
}

impl Sampler for TorchEpochSeed {
    fn list(&self, epoch: u64, positions: u64) -> Result<Arc<Permutation>, OrderError> {
        let epoch = if self.epoch_is_set { epoch } else { 0 };
        let seed = self.seed.torch(epoch)?;
        Ok(Arc::new(TorchGenerator::new(seed).randperm(positions)?))
    }
}

/// Moves a generator past `times` calls of `randperm(n)` without building them.
pub(crate) fn skip_randperms(generator: &mut TorchGenerator, n: u64, times: u64) {
    let words_each = if n < RANDPERM_SWITCH {
        u128::from(n.saturating_sub(1))
    } else {
        2 * u128::from(n)
    };
    skip_words(generator, words_each.saturating_mul(times.into()));
}

/// Moves a generator past `words` 32-bit words.
pub(crate) fn skip_words(generator: &mut TorchGenerator, mut words: u128) {
    let mut buffer = [0u32; 4096];
    while words > 0 {
        let now = words.min(buffer.len() as u128);
        generator.fill_u32(&mut buffer[..now as usize]);
        words -= now;
    }
}
