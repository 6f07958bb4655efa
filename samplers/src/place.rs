//! Where a sample is consumed, and how a run is laid out over ranks.

use serde::{Deserialize, Serialize};

use crate::spec::OrderError;

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

    /// Checks that no number is 0 and that a global batch can be counted.
    ///
    /// # Errors
    /// [`OrderError::Geometry`] naming the number at fault.
    pub fn check(&self) -> Result<(), OrderError> {
        for (name, value) in [
            ("world_size", self.world_size),
            ("micro_batch_size", self.micro_batch_size),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps),
        ] {
            if value == 0 {
                return Err(OrderError::Geometry(format!(
                    "{name} is 0: it must be at least 1"
                )));
            }
        }
        // Below 2^48 no product of it with a micro-step that a run can reach overflows.
        let global = u128::from(self.world_size)
            .checked_mul(self.micro_batch_size.into())
            .and_then(|x| x.checked_mul(self.gradient_accumulation_steps.into()));
        match global {
            Some(x) if x < 1 << 48 => Ok(()),
            _ => Err(OrderError::Geometry(format!(
                "world_size {} x micro_batch_size {} x gradient_accumulation_steps {} is no global batch size below 2^48",
                self.world_size, self.micro_batch_size, self.gradient_accumulation_steps
            ))),
        }
    }
}
