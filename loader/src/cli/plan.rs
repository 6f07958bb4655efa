//! Which micro-steps a command goes through: epochs and optimizer steps as asked for, as a run of micro-steps.

use std::ops::Range;
use std::sync::Arc;

use ceteris_samplers::{Epoch, Order};

use super::failure::Failure;
use super::ranges::StepRange;

/// A contiguous run of micro-steps, possibly over several epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Epoch and micro-step within it that come first.
    pub first: (u64, u64),
    /// Last epoch, and the first micro-step of it that does not belong to the run.
    pub last: (u64, u64),
    /// Micro-steps of a whole epoch.
    pub per_epoch: u64,
}

impl Plan {
    /// Optimizer steps `steps`, counted from the start of `epoch` and running on into later ones up to `epochs`
    /// of them.
    ///
    /// # Errors
    /// A failure when the range reaches past the epochs asked for, an epoch does not exist, or it is empty.
    pub fn new(
        order: &dyn Order,
        epoch: u64,
        epochs: Option<u64>,
        steps: StepRange,
    ) -> Result<Self, Failure> {
        let count = epochs.unwrap_or(1);
        let (per_epoch, steps_per_epoch) = (order.micro_steps_per_epoch(), order.steps_per_epoch());
        if count == 0 {
            return Err(Failure::new("--epochs is 0: it must be at least 1"));
        }
        let Some(end_epoch) = epoch.checked_add(count) else {
            return Err(Failure::new(format!(
                "--epoch {epoch} with --epochs {count} is past the last epoch there can be"
            )));
        };
        if let Some(known) = order.num_epochs()
            && end_epoch > known
        {
            return Err(Failure::new(format!(
                "epoch {} does not exist: order {} has {known} epoch(s) over this dataset",
                end_epoch - 1,
                order.spec().name()
            )));
        }
        if per_epoch == 0 {
            return Err(empty(order));
        }
        let total = count
            .checked_mul(steps_per_epoch)
            .filter(|_| end_epoch.checked_mul(per_epoch).is_some());
        let Some(total) = total else {
            return Err(Failure::new(format!(
                "{count} epochs of {per_epoch} micro-steps cannot be counted"
            )));
        };
        let end = steps.end.unwrap_or(total);
        if end > total || steps.start >= total {
            let failure = Failure::new(format!(
                "--steps {steps} reaches past the end: {count} epoch(s) of {steps_per_epoch} steps have steps 0 to {}",
                total - 1
            ));
            let needed = end.max(steps.start + 1).div_ceil(steps_per_epoch);
            return Err(failure.fix(format!(
                "--epochs {needed} runs on into later epochs, --steps {} ends here",
                StepRange {
                    start: steps.start.min(total - 1),
                    end: Some(total),
                }
            )));
        }
        let locate = |step: u64| -> Result<(u64, u64), Failure> {
            let (epoch_of, step) = (epoch + step / steps_per_epoch, step % steps_per_epoch);
            let index = if step == 0 {
                None
            } else {
                Some(order.epoch(epoch_of)?)
            };
            Ok((epoch_of, index.map_or(0, |index| first_micro_step(&*index, step))))
        };
        let first = locate(steps.start)?;
        let mut last = locate(end)?;
        if last.1 == 0 {
            // The end is the start of an epoch that is not part of the run.
            last = (last.0 - 1, per_epoch);
        }
        Ok(Self {
            first,
            last,
            per_epoch,
        })
    }

    /// From a micro-step on, to the end of `epochs` epochs counted from epoch 0 (by default, of the epoch it is in).
    ///
    /// # Errors
    /// A failure when nothing is left, or the last epoch does not exist.
    pub fn from(order: &dyn Order, first: (u64, u64), epochs: Option<u64>) -> Result<Self, Failure> {
        let per_epoch = order.micro_steps_per_epoch();
        let first = if first.1 >= per_epoch {
            (first.0 + 1, 0)
        } else {
            first
        };
        let end = epochs.unwrap_or(first.0 + 1);
        if first.0 >= end {
            return Err(Failure::new(format!(
                "nothing is left: the state stands at the end of epoch {}",
                first.0 - 1
            ))
            .fix(format!("--epochs {} goes on into the next epoch", first.0 + 1)));
        }
        let whole = Self::new(order, first.0, Some(end - first.0), StepRange::ALL)?;
        Ok(Self { first, ..whole })
    }

    /// Number of micro-steps.
    pub fn micro_steps(&self) -> u64 {
        (self.last.0 - self.first.0) * self.per_epoch + self.last.1 - self.first.1
    }

    /// Epochs it touches.
    pub fn epochs(&self) -> Range<u64> {
        self.first.0..self.last.0 + 1
    }

    /// Micro-steps of one of its epochs.
    pub fn micro_steps_of(&self, epoch: u64) -> Range<u64> {
        let start = if epoch == self.first.0 { self.first.1 } else { 0 };
        let end = if epoch == self.last.0 {
            self.last.1
        } else {
            self.per_epoch
        };
        start..end
    }

    /// It consists of whole epochs.
    pub fn is_whole(&self) -> bool {
        self.first.1 == 0 && self.last.1 == self.per_epoch
    }
}

fn empty(order: &dyn Order) -> Failure {
    let geometry = order.geometry();
    let drop_last = order.spec().entry().option("drop_last");
    let keep = match drop_last.map(|option| option.default) {
        // On unless it is turned off.
        Some("true") => "give --drop-last=false, which keeps them as short micro-batches",
        _ => "leave out --drop-last",
    };
    Failure::new(format!(
        "an epoch has no micro-step: {} sample(s) over {} rank(s) with micro-batches of {} are all dropped",
        order.num_samples(),
        geometry.world_size,
        geometry.micro_batch_size
    ))
    .fix(format!(
        "{keep}, or use a smaller --world-size or --micro-batch-size"
    ))
}

/// First micro-step of optimizer step `step`, which is at most the number of steps.
fn first_micro_step(index: &dyn Epoch, step: u64) -> u64 {
    let (mut low, mut high) = (0, index.micro_steps());
    while low < high {
        let middle = low + (high - low) / 2;
        if index.step_of(middle) < step {
            low = middle + 1
        } else {
            high = middle
        }
    }
    low
}

/// What one rank consumes in one micro-step, in reusable vectors.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Rows of the table the order permutes.
    pub samples: Vec<u64>,
    /// Positions after the order's own shuffle.
    pub positions: Vec<u64>,
}

impl Places {
    /// Looks up one micro-batch.
    pub fn fill(&mut self, index: &Arc<dyn Epoch>, micro_step: u64, rank: u64, micro_batch_size: u64) {
        self.samples.clear();
        self.positions.clear();
        for slot in 0..micro_batch_size {
            let place = ceteris_samplers::Place {
                micro_step,
                rank,
                slot,
            };
            if let (Some(sample), Some(position)) = (index.sample(place), index.position(place)) {
                self.samples.push(sample);
                self.positions.push(position);
            }
        }
    }
}
