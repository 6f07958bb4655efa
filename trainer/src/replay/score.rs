//! One state of the model on the batches of two orders: how much of a difference in loss is the batch.
//!
//! The loss that a step logs is taken before its update, so step `k + 1` of a run is the state after step `k` on its next
//! batch. With another run B that has step `k + 1` as well,
//!
//! ```text
//! loss_B - loss_A = [L(state A, batch B) - L(state A, batch A)] + [L(state B, batch B) - L(state A, batch B)]
//!                    how much harder B's batch is                   how much worse B's state is
//! ```
//!
//! and only the middle term has to be computed. No weight is changed.

use serde::Serialize;

use super::sides::Sides;
use super::{ReplayError, folder, io};
use crate::checkpoint;
use crate::compare::curve;
use crate::data::{GlobalBatch, GlobalBatches};
use crate::device;
use crate::run::RunError;
use crate::run::engine::Engine;
use crate::run::folder::RunFolder;
use crate::run::resume;

/// Version of the JSON report.
pub const SCORE_VERSION: u32 = 1;

/// One step's batches under the state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scored {
    /// The step the batches belong to.
    pub step: u64,
    /// Loss of the run's own batch.
    pub batch_a: f64,
    /// Loss of the other order's batch.
    pub batch_b: f64,
    /// The other's less the own.
    pub difference: f64,
    /// Fingerprints of the two batches.
    pub fingerprints: (String, String),
}

/// The difference between two runs at a step, in two parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Split {
    /// The step.
    pub step: u64,
    /// Loss that the run recorded.
    pub run_a: f64,
    /// Loss that the other run recorded.
    pub run_b: f64,
    /// The other's less the own.
    pub difference: f64,
    /// Part of it that the batches make under the same weights.
    pub batch: f64,
    /// Part of it that the states make on the same batch.
    pub state: f64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// [`SCORE_VERSION`].
    pub ceteris_score: u32,
    /// Steps done by the state.
    pub step: u64,
    /// Step by step.
    pub batches: Vec<Scored>,
    /// Mean of the differences.
    pub mean_difference: f64,
    /// Their standard deviation; none for one step.
    pub standard_deviation: Option<f64>,
    /// The next step in two parts, where the other order is a run that has it.
    pub split: Option<Split>,
    /// The next step's own batch gives the loss that the run recorded, bit for bit; none where it recorded none.
    pub as_recorded: Option<bool>,
}

/// Scores the state after `step` steps on the next `steps` batches of both orders.
///
/// # Errors
/// [`ReplayError`]: no checkpoint of that step, or data that ends before it.
pub fn score(sides: &Sides, step: u64, steps: u64, tick: &mut dyn FnMut(u64)) -> Result<Score, ReplayError> {
    let from = RunFolder::new(&sides.from);
    let products = device::load_products(&from.products()).map_err(io(&from.products(), "read"))?;
    let mut engine = Engine::build_again(&sides.a, products).map_err(RunError::from)?;
    if step == 0 {
        engine.initialise(&sides.a).map_err(RunError::from)?;
    } else {
        let path = from.checkpoints().join(checkpoint::folder_name(step));
        if !path.exists() {
            let there = checkpoint::steps_in(&from.checkpoints())?;
            let there: Vec<String> = there.iter().map(u64::to_string).collect();
            return folder(
                &sides.from,
                format!(
                    "holds no checkpoint of step {step}; it has steps 0{}{}. Train it with checkpoint.every, or let trainer replay \
                     --until {step} make that state and score it from the own-steps folder of its output",
                    if there.is_empty() { "" } else { ", " },
                    there.join(", ")
                ),
            );
        }
        let found = checkpoint::verify(&path)?;
        resume::load(&mut engine, &sides.a, &found)?;
    }
    let mut own = sides.data_a.batches_from(&sides.a, step, None)?;
    let mut other = sides.data_b.batches_from(&sides.b, step, None)?;
    let mut batches = Vec::new();
    for n in 1..=steps {
        let (Some(a), Some(b)) = (next(&mut own)?, next(&mut other)?) else {
            break;
        };
        let batch_a = loss(&mut engine, &a)?;
        // The same rows in the same sequence are one batch, and need no second look.
        let batch_b = if a.fingerprint.fingerprint == b.fingerprint.fingerprint {
            batch_a
        } else {
            loss(&mut engine, &b)?
        };
        batches.push(Scored {
            step: step + n,
            batch_a,
            batch_b,
            difference: batch_b - batch_a,
            fingerprints: (
                a.fingerprint.fingerprint.to_string(),
                b.fingerprint.fingerprint.to_string(),
            ),
        });
        tick(n);
    }
    let Some(first) = batches.first() else {
        return Err(ReplayError::Step {
            step,
            problem: "the data ends there: no batch is left to score".into(),
        });
    };
    let recorded = curve::read(&from.metrics(), &curve::ReadOptions::default())?
        .at(step + 1)
        .cloned();
    let other = match &sides.other {
        Some(run) => curve::read(&RunFolder::new(run).metrics(), &curve::ReadOptions::default())?
            .at(step + 1)
            .cloned(),
        None => None,
    };
    // Only the other run's own batch says what its state is worth.
    let other = other.filter(|p| p.batch_fingerprint.as_deref() == Some(first.fingerprints.1.as_str()));
    let split = recorded.as_ref().zip(other).map(|(a, b)| Split {
        step: step + 1,
        run_a: a.loss,
        run_b: b.loss,
        difference: b.loss - a.loss,
        batch: first.batch_b - a.loss,
        state: b.loss - first.batch_b,
    });
    let count = batches.len() as f64;
    let mean = batches.iter().map(|b| b.difference).sum::<f64>() / count;
    let squares: f64 = batches.iter().map(|b| (b.difference - mean).powi(2)).sum();
    Ok(Score {
        ceteris_score: SCORE_VERSION,
        step,
        as_recorded: recorded.map(|p| p.loss.to_bits() == first.batch_a.to_bits()),
        mean_difference: mean,
        standard_deviation: (count > 1.0).then(|| (squares / (count - 1.0)).sqrt()),
        split,
        batches,
    })
}

fn next(batches: &mut GlobalBatches) -> Result<Option<GlobalBatch>, ReplayError> {
    Ok(batches.next_batch()?)
}

/// Mean negative log-likelihood of a batch under the weights as they are.
fn loss(engine: &mut Engine, batch: &GlobalBatch) -> Result<f64, ReplayError> {
    let rows = engine.micro_batch_size();
    let mut index = 0;
    let sum = engine
        .evaluate(|input| {
            if index == batch.micro_batches(rows) {
                return Ok(false);
            }
            batch.fill(index, rows, input)?;
            index += 1;
            Ok(true)
        })
        .map_err(RunError::from)?;
    Ok(sum / batch.counted_tokens().max(1) as f64)
}
