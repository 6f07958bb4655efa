//! Where a sample is consumed, and how a run is laid out over ranks.

use serde::{Deserialize, Serialize};

/// Index of a sample in its dataset: a row of the stored table, or a Megatron `sample_index` entry.
pub type SampleId = u64;

/// Where one sample is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Micro-step within the epoch: one forward/backward of one micro-batch on every rank.
    pub micro_step: u64,
    /// Data-parallel rank, `< world_size`.
    pub rank: u64,
    /// Row of the micro-batch, `< micro_batch_size`.
    pub slot: u64,
}

/// How a global batch is split over ranks, micro-batches and accumulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Number of data-parallel ranks, at least 1.
    pub world_size: u64,
    /// Samples of one forward pass on one rank, at least 1.
    pub micro_batch_size: u64,
    /// Micro-steps of one optimizer step, at least 1.
    pub gradient_accumulation_steps: u64,
}

impl Geometry {
    /// Samples of one micro-step over all ranks.
    pub fn samples_per_micro_step(&self) -> u64 {
        self.world_size * self.micro_batch_size
    }

    /// Samples of one full optimizer step.
    pub fn global_batch_size(&self) -> u64 {
        self.samples_per_micro_step() * self.gradient_accumulation_steps
    }
}
