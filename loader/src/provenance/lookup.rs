//! Look-ups between places of an order and documents: what a step consumed, and where a sample or document went.

use std::sync::Arc;

use ceteris_samplers::{Epoch, Order, OrderError, Place, SampleId};
use rayon::prelude::*;
use serde::Serialize;

use super::documents::Documents;
use crate::diff::layout::At;
use crate::source::{DocumentSpan, SourceError};

/// Why a look-up fails.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// An epoch cannot be built.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A sample cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The order has no such step.
    #[error("step {step} of epoch {epoch} does not exist: an epoch has steps 0 to {last}")]
    Step {
        /// Asked for.
        step: u64,
        /// Of this epoch.
        epoch: u64,
        /// The last one there is.
        last: u64,
    },
}

/// A sample at a place, with its documents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Consumed {
    /// Where.
    #[serde(flatten)]
    pub at: At,
    /// The sample.
    pub sample: SampleId,
    /// Its documents; empty without a dataset.
    pub documents: Vec<DocumentSpan>,
}

/// What steps `steps` of an epoch consume, on one rank or all.
///
/// # Errors
/// [`LookupError`].
pub fn of_steps(
    order: &dyn Order,
    documents: Option<&Documents>,
    epoch: u64,
    steps: std::ops::Range<u64>,
    ranks: &[u64],
) -> Result<Vec<Consumed>, LookupError> {
    let index = order.epoch(epoch)?;
    if steps.start >= index.steps() || steps.end > index.steps() {
        return Err(LookupError::Step {
            step: steps.start.max(steps.end.saturating_sub(1)),
            epoch,
            last: index.steps().saturating_sub(1),
        });
    }
    let mut found = Vec::new();
    let first = first_micro_step(&*index, steps.start);
    for micro_step in first..index.micro_steps() {
        if index.step_of(micro_step) >= steps.end {
            break;
        }
        for &rank in ranks {
            for slot in 0..order.geometry().micro_batch_size {
                let place = Place {
                    micro_step,
                    rank,
                    slot,
                };
                let Some(sample) = index.sample(place) else { break };
                found.push(Consumed {
                    at: at(&*index, place),
                    sample,
                    documents: documents.map_or(Ok(Vec::new()), |all| all.of_sample(sample))?,
                });
            }
        }
    }
    Ok(found)
}

/// First micro-step of a step.
fn first_micro_step(index: &dyn Epoch, step: u64) -> u64 {
    let (mut low, mut high) = (0, index.micro_steps());
    while low < high {
        let middle = low + (high - low) / 2;
        if index.step_of(middle) < step {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

fn at(index: &dyn Epoch, place: Place) -> At {
    At {
        epoch: index.epoch(),
        step: index.step_of(place.micro_step),
        micro_step: place.micro_step,
        rank: place.rank,
        slot: place.slot,
    }
}

/// Every place that consumes one of `samples`, epoch by epoch, in deal order. `done` hears of places looked at.
///
/// # Errors
/// [`LookupError`].
pub fn places_of(
    order: &dyn Order,
    samples: &[SampleId],
    epochs: std::ops::Range<u64>,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(At, SampleId)>, LookupError> {
    const TASK: u64 = 1 << 16;
    let mut wanted = samples.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let mut found = Vec::new();
    let geometry = order.geometry();
    for epoch in epochs {
        let index: Arc<dyn Epoch> = order.epoch(epoch)?;
        let places = index
            .micro_steps()
            .saturating_mul(geometry.samples_per_micro_step());
        let tasks: Vec<Vec<(At, SampleId)>> = (0..places.div_ceil(TASK))
            .into_par_iter()
            .map(|task| {
                let mut found = Vec::new();
                for k in task * TASK..((task + 1) * TASK).min(places) {
                    let Some(place) = index.place_of(k) else { break };
                    if let Some(sample) = index.sample(place)
                        && wanted.binary_search(&sample).is_ok()
                    {
                        found.push((at(&*index, place), sample));
                    }
                }
                done(TASK.min(places - task * TASK));
                found
            })
            .collect();
        found.extend(tasks.into_iter().flatten());
    }
    Ok(found)
}

/// What the samples shown say of how documents lie in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Packing {
    /// Some document is cut: a sample holds a part of it only.
    pub cut: bool,
    /// Some sample holds parts of several documents.
    pub packed: bool,
}

impl Packing {
    /// Of samples with their documents.
    pub fn of(consumed: &[Consumed]) -> Self {
        Self {
            cut: consumed
                .iter()
                .flat_map(|sample| &sample.documents)
                .any(|span| span.start > 0 || span.end < span.sequence_len),
            packed: consumed.iter().any(|sample| sample.documents.len() > 1),
        }
    }
}
