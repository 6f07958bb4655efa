//! The self-test: proves on this machine that a run's bits depend on its settings alone.
//!
//! A small network is trained for a few steps over made-up tokens under a shuffled order: once plainly, then with one
//! thread and with several, with and without loader workers, saved and resumed in the middle, under other factorisations
//! of the same global batch and in other device micro-batches. Every loss, gradient norm, batch fingerprint and final
//! weight must have the same bits each time. The result is kept in the user's cache folder and copied into the manifest
//! of every run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ceteris_loader::pipeline::LoaderState;
use ceteris_loader::source::{Source, SourceError};
use ceteris_samplers::SampleId;
use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::manifest::{Machine, combined_sha256};
use super::resume::load;
use super::{RunError, io, selftest_cuda, write_atomic};
use crate::checkpoint::{self, Snapshot, TrainerState, safetensors::Stored};
use crate::config::RunConfig;
use crate::data::TrainData;
use crate::device::Target;

/// Steps of each run.
const STEPS: u64 = 6;
/// Step after which a run is saved and resumed.
const HALF: u64 = 3;

/// One comparison with the plain run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What was done otherwise.
    pub name: String,
    /// Every bit was the same.
    pub same: bool,
    /// The first difference, or the final hash.
    pub detail: String,
}

/// Result of a self-test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Version that ran it.
    pub ceteris_version: String,
    /// Where.
    pub machine: Machine,
    /// Device.
    pub device: String,
    /// Seconds it took.
    pub seconds: f64,
    /// Every comparison.
    pub checks: Vec<Check>,
}

impl Report {
    /// Every comparison was the same.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|c| c.same)
    }
}

fn file() -> Option<PathBuf> {
    Some(ceteris_loader::source::cache_folder()?.join("selftest.json"))
}

/// The last self-test of this version on this machine.
pub fn recorded() -> Option<Report> {
    let text = std::fs::read_to_string(file()?).ok()?;
    let report: Report = serde_json::from_str(&text).ok()?;
    (report.ceteris_version == env!("CARGO_PKG_VERSION") && report.machine == Machine::here())
        .then_some(report)
}

/// Keeps a report for later runs' manifests.
///
/// # Errors
/// When the cache folder cannot be written.
pub fn record(report: &Report) -> Result<Option<PathBuf>, RunError> {
    let Some(path) = file() else { return Ok(None) };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io(folder, "create"))?;
    }
    let text = serde_json::to_string_pretty(report).map_err(|e| io(&path, "write")(e.into()))?;
    write_atomic(&path, &text)?;
    Ok(Some(path))
}

/// Most comparisons a self-test makes, for progress bars.
pub const MOST_CHECKS: u64 = 9;

/// Runs the self-test on a device (`train.device`'s names); `progress` hears the name of each comparison before it runs.
///
/// # Errors
/// [`RunError`]: a run could not be made at all.
pub fn run(device: &str, progress: &mut dyn FnMut(&str)) -> Result<Report, RunError> {
    let started = Instant::now();
    let mut plain_settings = settings();
    plain_settings.train.device = device.to_owned();
    let target = plain_settings.train.target()?;
    // By name: a device that was only chosen may leave sizes to the CPU, and the report would name what was not tested.
    plain_settings.train.device = target.to_string();
    let cuda = matches!(target, Target::Cuda(_));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    progress("plain run");
    let plain = trace(&plain_settings, None)?;
    let mut checks = Vec::new();
    let mut compare = |name: &str, change: &dyn Fn(&mut RunConfig), resume: bool| -> Result<(), RunError> {
        progress(name);
        let mut config = plain_settings.clone();
        change(&mut config);
        let other = trace(&config, resume.then_some(HALF))?;
        let difference = plain.difference(&other);
        checks.push(Check {
            name: name.to_owned(),
            same: difference.is_none(),
            detail: difference.unwrap_or_else(|| format!("weights {}", &other.weights[..16])),
        });
        Ok(())
    };
    compare("the same run again", &|_| {}, false)?;
    if !cuda {
        compare("1 thread", &|c| c.train.threads = Some(1), false)?;
        compare("3 threads", &|c| c.train.threads = Some(3), false)?;
    }
    compare(
        &format!("{} threads, 5 loader workers", 2 * cores),
        &|c| {
            c.train.threads = Some(2 * cores);
            c.loader.workers = 5;
        },
        false,
    )?;
    compare("saved and resumed in the middle", &|_| {}, true)?;
    compare(
        "1 rank x micro-batch 2 x accumulation 4",
        &|c| {
            c.batch.world_size = 1;
            c.batch.gradient_accumulation_steps = Some(4);
        },
        false,
    )?;
    // A device's sums over rows follow the size of its micro-batches; the CPU's do not.
    if !cuda {
        compare(
            "device micro-batches of 1 row",
            &|c| c.batch.device_micro_batch_size = Some(1),
            false,
        )?;
        compare(
            "device micro-batches of 4 rows",
            &|c| c.batch.device_micro_batch_size = Some(4),
            false,
        )?;
    }
    if let Target::Cuda(ordinal) = target {
        checks.extend(selftest_cuda::checks(&plain_settings, ordinal, progress)?);
    }
    Ok(Report {
        ceteris_version: env!("CARGO_PKG_VERSION").into(),
        machine: Machine::here(),
        device: target.to_string(),
        seconds: started.elapsed().as_secs_f64(),
        checks,
    })
}

/// A network with grouped value heads, convolutions and a tied head, on 4 ranks.
fn settings() -> RunConfig {
    let mut config = RunConfig::default();
    let model = &mut config.model;
    (model.hidden_size, model.num_hidden_layers, model.vocab_size) = (64, 2, 256);
    (model.num_heads, model.num_v_heads, model.head_dim, model.expand_v) = (1, Some(4), 64, 1.0);
    (model.intermediate_size, model.tie_word_embeddings) = (Some(128), true);
    config.data.cache_dir = "made-up".into();
    config.data.seq_length = 96;
    config.order.insert("name".into(), "fla".into());
    (config.batch.world_size, config.batch.micro_batch_size) = (4, 2);
    config.batch.gradient_accumulation_steps = Some(1);
    config.train.steps = Some(STEPS);
    (config.loader.workers, config.loader.prefetch) = (2, 4);
    config
}

/// Everything that must not change.
#[derive(Debug)]
struct Trace {
    /// Loss, gradient norm and batch fingerprint of each step.
    steps: Vec<(f64, f64, String)>,
    weights: String,
}

impl Trace {
    fn difference(&self, other: &Trace) -> Option<String> {
        for (i, (a, b)) in self.steps.iter().zip(&other.steps).enumerate() {
            if a.0.to_bits() != b.0.to_bits() || a.1.to_bits() != b.1.to_bits() || a.2 != b.2 {
                return Some(format!("step {}: {a:?} against {b:?}", i + 1));
            }
        }
        (self.weights != other.weights).then(|| format!("weights {} against {}", self.weights, other.weights))
    }
}

fn trace(config: &RunConfig, resume_after: Option<u64>) -> Result<Trace, RunError> {
    let mut steps = Vec::new();
    let mut engine = Engine::build(config)?;
    engine.initialise(config)?;
    let half = resume_after.unwrap_or(STEPS);
    let state = go(config, &mut engine, None, 0, half, &mut steps)?;
    if half < STEPS {
        let folder = tempfile::tempdir().map_err(io(std::env::temp_dir().as_path(), "create a folder in"))?;
        let tensors = engine.tensors();
        let trainer_state = TrainerState {
            format: checkpoint::FORMAT,
            ceteris_version: env!("CARGO_PKG_VERSION").into(),
            step: half,
            tokens: 0,
            config: serde_json::Value::Null,
        };
        let mut snapshot = Snapshot {
            tensors: &tensors,
            stored: Stored::F32,
            values: &mut |part, tensor, first, out: &mut [f64]| engine.read_part(part, tensor, first, out),
            config_json: checkpoint::config_json(&config.model, Stored::F32),
            state: &trainer_state,
            loader: &state,
        };
        let path = checkpoint::save(folder.path(), 1, &mut snapshot)?;
        let found = checkpoint::verify(&path)?;
        engine = Engine::build(config)?;
        load(&mut engine, config, &found)?;
        go(config, &mut engine, Some(&found.loader), half, STEPS, &mut steps)?;
    }
    let weights = combined_sha256(&engine.weights_sha256()?);
    Ok(Trace { steps, weights })
}

fn go(
    config: &RunConfig,
    engine: &mut Engine,
    from: Option<&LoaderState>,
    first: u64,
    end: u64,
    out: &mut Vec<(f64, f64, String)>,
) -> Result<LoaderState, RunError> {
    let data = TrainData::over(config, Arc::new(MadeUp), "made-up".into())?;
    let mut batches = data.batches(config, from, None)?;
    for step in first..end {
        let Some(batch) = batches.next_batch()? else { break };
        let result = engine.step(&batch, step + 1, 1e-2)?;
        out.push((
            result.loss,
            result.grad_norm,
            batch.fingerprint.fingerprint.to_string(),
        ));
    }
    Ok(batches.state().clone())
}

/// 100 rows of tokens that repeat with a period of their own, so that there is something to learn.
#[derive(Debug)]
struct MadeUp;

impl Source for MadeUp {
    fn num_samples(&self) -> u64 {
        100
    }

    fn sample_len(&self, _: SampleId) -> Result<usize, SourceError> {
        Ok(96)
    }

    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError> {
        let period = 3 + id as usize % 7;
        for (at, token) in out.iter_mut().enumerate() {
            *token = ((id as usize * 31 + at % period * 17) % 256) as i32;
        }
        Ok(out.len().min(96))
    }

    fn file_of(&self, _: SampleId) -> Option<PathBuf> {
        None
    }

    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}
