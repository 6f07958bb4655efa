//! A run with another order, from its start or from a step on.
//!
//! With a step K, steps 1 to K are the run's own: its checkpoint of step K is taken, or the run is repeated up to there
//! (and must give the recorded losses, bit for bit). Weights, moments, step and learning rates are handed over as they
//! are; the data goes on at step K + 1 of the other order, the one a run with that order alone would take then: its own
//! epoch and position.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::sides::Sides;
use super::{ReplayError, folder, io};
use crate::checkpoint::{self, Found, TrainerState};
use crate::compare::curve::{self, Curve};
use crate::data::OrderHasher;
use crate::run::folder::RunFolder;
use crate::run::manifest::Manifest;
use crate::run::metrics::{self, Line};
use crate::run::resume::settings;
use crate::run::train::{Outcome, TrainOptions, train};
use crate::run::write_atomic;

/// File of a replay's folder that says what it is.
pub const FILE: &str = "replay.json";
/// Version of that file and of the JSON report.
pub const REPLAY_VERSION: u32 = 1;

/// What a replay is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// [`REPLAY_VERSION`].
    pub ceteris_replay: u32,
    /// Folder of the run.
    pub from: PathBuf,
    /// Its run fingerprint, where it has ended.
    pub run_fingerprint: Option<String>,
    /// Its order.
    pub order_a: ceteris_samplers::OrderSpec,
    /// The other order.
    pub order_b: ceteris_samplers::OrderSpec,
    /// Steps in the run's own order before the other one; 0 for none.
    pub own_steps: u64,
}

/// Losses of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The step.
    pub step: u64,
    /// Loss of the run.
    pub run: f64,
    /// Loss of the replay.
    pub replay: f64,
    /// The replay's less the run's.
    pub difference: f64,
}

/// What a replay gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// What it is made of.
    #[serde(flatten)]
    pub recipe: Recipe,
    /// Its folder.
    pub folder: PathBuf,
    /// Steps that both have.
    pub losses: Vec<Pair>,
    /// First step with another loss.
    pub first_difference: Option<u64>,
    /// Mean difference over the steps in the other order.
    pub mean_difference: f64,
    /// Largest difference from the run whose order was taken, where its steps have the same batches throughout.
    pub other_run: Option<OtherRun>,
}

/// The replay against the run whose order it took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OtherRun {
    /// Its folder.
    pub folder: PathBuf,
    /// Every step consumed the same batch.
    pub same_batches: bool,
    /// Largest difference in loss.
    pub largest_difference: f64,
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// Whole.
    Done(Box<Replayed>),
    /// By a signal; the same command goes on.
    Stopped(i32),
}

/// Makes the run in `output`; `own_steps` steps stay in the run's own order. `say` hears what a user should be told.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(
    sides: &Sides,
    own_steps: u64,
    output: &Path,
    options: &TrainOptions,
    say: &dyn Fn(&str),
) -> Result<Ended, ReplayError> {
    let steps = sides.data_b.steps(&sides.b);
    if own_steps >= steps {
        return Err(ReplayError::Step {
            step: own_steps,
            problem: format!("the run has {steps} steps, so nothing would be left for the other order"),
        });
    }
    let recipe = Recipe {
        ceteris_replay: REPLAY_VERSION,
        from: sides.from.clone(),
        run_fingerprint: sides.manifest.run_fingerprint.clone(),
        order_a: sides.data_a.order.spec().clone(),
        order_b: sides.data_b.order.spec().clone(),
        own_steps,
    };
    std::fs::create_dir_all(output).map_err(io(output, "create"))?;
    note_recipe(&recipe, output)?;
    if own_steps > 0
        && let Some(signal) = own_part(sides, own_steps, steps, output, options, say)?
    {
        return Ok(Ended::Stopped(signal));
    }
    let config = crate::config::RunConfig {
        output_dir: output.to_owned(),
        ..sides.b.clone()
    };
    let outcome = train(&config, options)?;
    if let Some(signal) = outcome.stopped {
        return Ok(Ended::Stopped(signal));
    }
    Ok(Ended::Done(Box::new(result(sides, recipe, &outcome)?)))
}

/// Writes what the folder holds; a folder of something else is refused.
fn note_recipe(recipe: &Recipe, output: &Path) -> Result<(), ReplayError> {
    let path = output.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => match serde_json::from_str::<Recipe>(&text) {
            Ok(there) if there == *recipe => Ok(()),
            _ => folder(output, "holds another replay; name another --output"),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if RunFolder::new(output).settings().exists() {
                return folder(output, "holds a run; name another --output");
            }
            let text = serde_json::to_string_pretty(recipe).map_err(|e| io(&path, "write")(e.into()))?;
            Ok(write_atomic(&path, &format!("{text}\n"))?)
        }
        Err(e) => Err(io(&path, "read")(e)),
    }
}

/// Puts the run's first `own_steps` steps into `output` as a run that goes on in the other order; the signal that stopped
/// it, if one did.
fn own_part(
    sides: &Sides,
    own_steps: u64,
    steps: u64,
    output: &Path,
    options: &TrainOptions,
    say: &dyn Fn(&str),
) -> Result<Option<i32>, ReplayError> {
    let target = RunFolder::new(output);
    if checkpoint::newest_valid(&target.checkpoints())?.0.is_some() {
        return Ok(None);
    }
    let kept = sides
        .from
        .join("checkpoints")
        .join(checkpoint::folder_name(own_steps));
    let (source, found) = match checkpoint::verify(&kept) {
        Ok(found) => (sides.from.clone(), found),
        Err(_) => {
            let again = output.join("own-steps");
            say(&format!(
                "{} holds no checkpoint of step {own_steps}: its first {own_steps} steps are run again",
                sides.from.display()
            ));
            let config = crate::config::RunConfig {
                output_dir: again.clone(),
                ..sides.a.clone()
            };
            let products = RunFolder::new(&sides.from).products();
            if products.exists() {
                std::fs::create_dir_all(&again).map_err(io(&again, "create"))?;
                let copy = RunFolder::new(&again).products();
                std::fs::copy(&products, &copy).map_err(io(&copy, "write"))?;
            }
            let outcome = train(
                &config,
                &TrainOptions {
                    stop_after: Some(own_steps),
                    ..options.clone()
                },
            )?;
            if outcome.step < own_steps {
                return Ok(Some(outcome.stopped.unwrap_or(0)));
            }
            check_repeated(sides, &again, own_steps)?;
            let path = again.join("checkpoints").join(checkpoint::folder_name(own_steps));
            (again, checkpoint::verify(&path)?)
        }
    };
    hand_over(sides, &source, &found, own_steps, steps, &target)?;
    Ok(None)
}

/// The repeated steps are those of the run, bit for bit.
fn check_repeated(sides: &Sides, again: &Path, own_steps: u64) -> Result<(), ReplayError> {
    let (recorded, repeated) = (curve_of(&sides.from)?, curve_of(again)?);
    for step in 1..=own_steps {
        if let (Some(a), Some(b)) = (recorded.at(step), repeated.at(step))
            && a.loss.to_bits() != b.loss.to_bits()
        {
            return folder(
                &sides.from,
                format!(
                    "repeated here, step {step} gives loss {} where {} is recorded: another device or version computed it, so \
                     the state of step {own_steps} cannot be made again",
                    b.loss, a.loss
                ),
            );
        }
    }
    Ok(())
}

fn hand_over(
    sides: &Sides,
    source: &Path,
    found: &Found,
    own_steps: u64,
    steps: u64,
    target: &RunFolder,
) -> Result<(), ReplayError> {
    let from = RunFolder::new(source);
    let lines = metrics::read(&from.metrics()).map_err(io(&from.metrics(), "read"))?;
    let mut text = String::new();
    for line in lines.iter().filter(|l| l.step() <= own_steps) {
        let line = serde_json::to_string(line).map_err(|e| io(&from.metrics(), "read")(e.into()))?;
        text.push_str(&line);
        text.push('\n');
    }
    let last = lines
        .iter()
        .filter(|l| matches!(l, Line::Step(_)))
        .map(Line::step)
        .filter(|s| *s <= own_steps)
        .max();
    if last != Some(own_steps) {
        return folder(source, format!("its metrics end before step {own_steps}"));
    }
    write_atomic(&target.metrics(), &text)?;
    if from.products().exists() {
        std::fs::copy(from.products(), target.products()).map_err(io(&target.products(), "write"))?;
    }
    let mut order = OrderHasher::default();
    order.add(&sides.data_a, 0..own_steps)?;
    order.add(&sides.data_b, own_steps..steps)?;
    Manifest {
        order_hash: order.finish(),
        order: sides.data_b.order.spec().clone(),
        run_fingerprint: None,
        ..sides.manifest.clone()
    }
    .save(&target.manifest())?;
    let config = crate::config::RunConfig {
        output_dir: target.manifest().parent().unwrap_or(Path::new(".")).to_owned(),
        ..sides.b.clone()
    };
    let state = TrainerState {
        config: settings(&config),
        ..found.state.clone()
    };
    let batches = sides.data_b.batches_from(&sides.b, own_steps, None)?;
    // The checkpoint comes last: with it the folder is a run that goes on.
    checkpoint::hand_over(&found.path, &target.checkpoints(), &state, batches.state())?;
    Ok(())
}

fn curve_of(run: &Path) -> Result<Curve, ReplayError> {
    Ok(curve::read(
        &RunFolder::new(run).metrics(),
        &curve::ReadOptions::default(),
    )?)
}

fn result(sides: &Sides, recipe: Recipe, outcome: &Outcome) -> Result<Replayed, ReplayError> {
    let (run, replayed) = (curve_of(&sides.from)?, curve_of(&outcome.folder)?);
    let losses: Vec<Pair> = run
        .points
        .iter()
        .filter_map(|a| {
            let b = replayed.at(a.step)?;
            Some(Pair {
                step: a.step,
                run: a.loss,
                replay: b.loss,
                difference: b.loss - a.loss,
            })
        })
        .collect();
    let other_run = match &sides.other {
        Some(other) if recipe.own_steps == 0 => {
            let theirs = curve_of(other)?;
            let both = || {
                replayed
                    .points
                    .iter()
                    .filter_map(|a| Some((a, theirs.at(a.step)?)))
            };
            Some(OtherRun {
                folder: other.clone(),
                same_batches: both().all(|(a, b)| a.batch_fingerprint == b.batch_fingerprint),
                largest_difference: both().map(|(a, b)| (a.loss - b.loss).abs()).fold(0.0, f64::max),
            })
        }
        _ => None,
    };
    let after: Vec<f64> = losses
        .iter()
        .filter(|p| p.step > recipe.own_steps)
        .map(|p| p.difference)
        .collect();
    Ok(Replayed {
        folder: outcome.folder.clone(),
        first_difference: losses.iter().find(|p| p.difference != 0.0).map(|p| p.step),
        mean_difference: after.iter().sum::<f64>() / after.len().max(1) as f64,
        losses,
        other_run,
        recipe,
    })
}
