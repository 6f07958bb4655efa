//! The loop of a run: steps, checkpoints, evaluation, logs; starting anew or going on from a checkpoint.
//!
//! Given the same settings, every loss, gradient norm and checkpoint has the same bits, for any number of threads and
//! loader workers, and a run that was stopped and resumed any number of times equals one that was not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ceteris_loader::pipeline::{LoaderError, LoaderState, StopSignal};

use super::engine::Engine;
use super::evaluate::Evaluation;
use super::folder::RunFolder;
use super::manifest::{Manifest, combined_sha256, manifest, run_fingerprint};
use super::metrics::{Line, MetricsFile, StepMetrics};
use super::progress::Progress;
use super::resume::{check_resumable, find_checkpoint, load, settings};
use super::{RunError, io, write_atomic};
use crate::checkpoint::{self, Snapshot, TrainerState, safetensors};
use crate::config::{Precision, RunConfig};
use crate::data::{DataError, GlobalBatch, GlobalBatches, TrainData, batch_memory};
use crate::device;
use crate::optim::decay_table;
use crate::schedule::Schedule;
use crate::tensorboard::EventWriter;

/// Waiting for a step longer than this means that the device was still computing it.
const BUSY: Duration = Duration::from_micros(200);

/// What a caller may ask of a run beside its settings.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// Ends the run after the step in progress, with a checkpoint.
    pub stop: Option<StopSignal>,
    /// Show nothing but errors.
    pub quiet: bool,
    /// Lines about the settings, shown before anything else.
    pub notes: Vec<String>,
    /// Ends the run after this many of its steps, with a checkpoint, as a stop of the program: the learning rates stay those
    /// of the whole run.
    pub stop_after: Option<u64>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Steps done.
    pub step: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Loss of the last step done by this process.
    pub loss: Option<f64>,
    /// Last evaluation.
    pub eval_loss: Option<f64>,
    /// The signal that stopped it, 0 for the program; `None` when it is done.
    pub stopped: Option<i32>,
    /// Newest checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Folder of the run.
    pub folder: PathBuf,
}

/// Runs a training.
///
/// # Errors
/// [`RunError`]; what was saved before stays.
pub fn train(config: &RunConfig, options: &TrainOptions) -> Result<Outcome, RunError> {
    let mut run = Run::start(config, options)?;
    let ended = run.steps();
    run.progress.finish();
    ended
}

/// A batch read ahead of its step.
struct Prefetched {
    batch: Result<Option<GlobalBatch>, DataError>,
    /// The device was still computing when it was there.
    hidden: bool,
}

struct Run<'a> {
    config: &'a RunConfig,
    options: &'a TrainOptions,
    folder: RunFolder,
    engine: Engine,
    batches: GlobalBatches,
    /// The batch after the one that was taken last, read while the device computed.
    next: Option<Prefetched>,
    /// Where the loader stood after the batch that was taken last.
    loader_state: LoaderState,
    schedule: Schedule,
    evaluation: Option<Evaluation>,
    metrics: MetricsFile,
    events: Option<EventWriter>,
    progress: Progress,
    steps: u64,
    state: TrainerState,
    last: Outcome,
}

impl<'a> Run<'a> {
    fn start(config: &'a RunConfig, options: &'a TrainOptions) -> Result<Self, RunError> {
        config.validate()?;
        let say = |text: &str| {
            if !options.quiet {
                eprintln!("{text}");
            }
        };
        options.notes.iter().for_each(|n| say(n));
        let folder = RunFolder::new(&config.output_dir);
        std::fs::create_dir_all(&folder.0).map_err(io(&folder.0, "create"))?;
        let mut data = TrainData::open(config, &mut |n| say(n))?;
        let steps = data.steps(config);
        let schedule = config.learning_rates(steps)?;
        for warning in data.order.spec().warnings() {
            say(&warning);
        }
        let evaluation = Evaluation::open(config)?;
        let found = find_checkpoint(config, &folder, &say)?;
        let products = device::load_products(&folder.products()).map_err(io(&folder.products(), "read"))?;
        let mut engine = Engine::build_again(config, products)?;
        if let Some(products) = engine.products() {
            let text = serde_json::to_string_pretty(products).unwrap_or_default();
            write_atomic(&folder.products(), &text)?;
        }
        say(&format!("device: {}", engine.device()));
        engine.notes().iter().for_each(|n| say(n));
        let quiet = options.quiet;
        let notice = Arc::new(move |text: &str| {
            if !quiet {
                eprintln!("{text}");
            }
        });
        data.memory = batch_memory(engine.target(), notice);
        say(&format!(
            "model: {} values in {} tensors; order: {}; {} samples; {} steps of {} rows x {} tokens",
            engine.parameter_count(),
            engine.tensors().len(),
            data.order.spec(),
            data.source.num_samples(),
            steps,
            data.geometry.global_batch_size(),
            config.data.seq_length
        ));
        if data.order.spec().seeds().is_empty() {
            say("no shuffle applied: the order has no seed");
        }
        let state = match &found {
            Some(found) => {
                check_resumable(config, found, &say)?;
                load(&mut engine, config, found)?;
                say(&format!(
                    "goes on after step {} from {}",
                    found.state.step,
                    found.path.display()
                ));
                TrainerState {
                    config: settings(config),
                    ..found.state.clone()
                }
            }
            None => {
                engine.initialise(config)?;
                let shas = engine.weights_sha256()?;
                let mut manifest = manifest(
                    config,
                    &data,
                    steps,
                    &combined_sha256(&shas),
                    engine.parameter_count(),
                )?;
                manifest.device = engine.device().to_owned();
                manifest.save(&folder.manifest())?;
                TrainerState {
                    format: checkpoint::FORMAT,
                    ceteris_version: env!("CARGO_PKG_VERSION").into(),
                    step: 0,
                    tokens: 0,
                    config: settings(config),
                }
            }
        };
        write_atomic(&folder.settings(), &config.to_yaml()?)?;
        let tensors = engine.tensors();
        let table = decay_table(
            &config.optimizer,
            tensors.iter().map(|(n, s)| (n.as_str(), s.as_slice())),
        );
        for line in table
            .lines()
            .filter(|l| l.starts_with("decayed:") || l.starts_with("not decayed:"))
        {
            say(&format!(
                "weight decay {} ({}): {line}",
                config.optimizer.weight_decay,
                preset(config)
            ));
        }
        write_atomic(&folder.0.join("weight_decay.txt"), &table)?;
        let batches = data.batches(config, found.as_ref().map(|f| &f.loader), options.stop.clone())?;
        let metrics =
            MetricsFile::open(&folder.metrics(), state.step).map_err(io(&folder.metrics(), "open"))?;
        let events = if config.log.tensorboard {
            let path = folder.0.join("tensorboard");
            let purge = (state.step > 0).then_some(state.step + 1);
            Some(EventWriter::create(&path, purge).map_err(io(&path, "write to"))?)
        } else {
            None
        };
        let last = Outcome {
            step: state.step,
            steps,
            loss: None,
            eval_loss: None,
            stopped: None,
            checkpoint: found.map(|f| f.path),
            folder: folder.0.clone(),
        };
        Ok(Run {
            next: None,
            loader_state: batches.state().clone(),
            progress: Progress::new(steps, state.step, config.log.every, options.quiet),
            config,
            options,
            folder,
            engine,
            batches,
            schedule,
            evaluation,
            metrics,
            events,
            steps,
            state,
            last,
        })
    }

    fn steps(&mut self) -> Result<Outcome, RunError> {
        let mut saved = self.state.step;
        let end = self.options.stop_after.unwrap_or(self.steps).min(self.steps);
        while self.state.step < end {
            if let Some(signal) = self.stop_requested() {
                self.last.stopped = Some(signal);
                break;
            }
            match self.one_step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(RunError::Data(DataError::Loader(LoaderError::Interrupted { signal, .. }))) => {
                    self.last.stopped = Some(signal);
                    break;
                }
                Err(error) => return Err(error),
            }
            let step = self.state.step;
            if step.is_multiple_of(self.config.eval.every) || step == self.steps {
                self.evaluate()?;
            }
            if self
                .config
                .checkpoint
                .every
                .is_some_and(|n| step.is_multiple_of(n))
            {
                self.save()?;
                saved = step;
            }
        }
        if end < self.steps && self.state.step == end && self.last.stopped.is_none() {
            self.last.stopped = Some(0);
        }
        let done = self.last.stopped.is_none();
        if saved != self.state.step && (!done || self.config.checkpoint.at_end) {
            self.save()?;
        }
        if done {
            self.close()?;
        }
        self.last.step = self.state.step;
        Ok(self.last.clone())
    }

    fn stop_requested(&self) -> Option<i32> {
        self.options.stop.as_ref().and_then(StopSignal::requested)
    }

    /// One optimizer step; false when the data ends before the run.
    fn one_step(&mut self) -> Result<bool, RunError> {
        let started = Instant::now();
        let Some((batch, stall)) = self.take_batch()? else {
            return Ok(false);
        };
        let learning_rate = self.schedule.learning_rate(self.state.step);
        let update = self.state.step + 1;
        let begun = self.engine.start(&batch, update, learning_rate)?;
        let next = (update < self.steps).then(|| self.batches.next_batch());
        let waited = Instant::now();
        let result = self.engine.finish(begun)?;
        self.next = next.map(|batch| Prefetched {
            batch,
            hidden: waited.elapsed() > BUSY,
        });
        self.state.step = update;
        self.state.tokens += batch.tokens();
        let seconds = started.elapsed().as_secs_f64();
        let flops = self.engine.flops_per_micro_batch() as f64
            * batch.micro_batches(self.engine.micro_batch_size()) as f64;
        let line = StepMetrics {
            step: update,
            epoch: batch.epoch,
            loss: result.loss,
            grad_norm: result.grad_norm,
            lr: learning_rate,
            tokens: self.state.tokens,
            counted_tokens: batch.counted_tokens(),
            tokens_per_s: batch.tokens() as f64 / seconds,
            tflops_per_s: flops / seconds / 1e12,
            step_s: seconds,
            stall_ms: stall.as_secs_f64() * 1e3,
            batch_fingerprint: batch.fingerprint.fingerprint.to_string(),
        };
        self.last.loss = Some(line.loss);
        self.progress.step(&line);
        if let Some(events) = &mut self.events {
            let values = [
                ("train/loss", line.loss),
                ("train/grad_norm", line.grad_norm),
                ("train/lr", line.lr),
                ("train/tokens", line.tokens as f64),
                ("device/tokens_per_s", line.tokens_per_s),
                ("device/tflops_per_s", line.tflops_per_s),
                ("loader/stall_ms", line.stall_ms),
            ];
            let path = events.path().to_owned();
            events.scalars(update, &values).map_err(io(&path, "write"))?;
        }
        let path = self.folder.metrics();
        self.metrics
            .append(&Line::Step(line))
            .map_err(io(&path, "write"))?;
        Ok(true)
    }

    /// The next batch and how long the device stood still for it; `None` after the last one.
    fn take_batch(&mut self) -> Result<Option<(GlobalBatch, Duration)>, RunError> {
        let next = match self.next.take() {
            Some(next) => next,
            None => Prefetched {
                batch: self.batches.next_batch(),
                hidden: false,
            },
        };
        let Some(batch) = next.batch? else {
            return Ok(None);
        };
        // No later batch has been read yet.
        self.loader_state = self.batches.state().clone();
        let stall = if next.hidden { Duration::ZERO } else { batch.wait };
        Ok(Some((batch, stall)))
    }

    fn evaluate(&mut self) -> Result<(), RunError> {
        let Some(evaluation) = &self.evaluation else {
            return Ok(());
        };
        let line = evaluation.run(&mut self.engine, self.state.step)?;
        self.progress.say(&format!(
            "step {}: eval_loss {:.4} over {} tokens",
            line.step, line.eval_loss, line.eval_tokens
        ));
        self.last.eval_loss = Some(line.eval_loss);
        if let Some(events) = &mut self.events {
            let path = events.path().to_owned();
            events
                .scalars(line.step, &[("eval/loss", line.eval_loss)])
                .map_err(io(&path, "write"))?;
        }
        let path = self.folder.metrics();
        self.metrics.append(&Line::Eval(line)).map_err(io(&path, "write"))
    }

    fn save(&mut self) -> Result<(), RunError> {
        // Lines up to a checkpoint must be there when it is resumed.
        let path = self.folder.metrics();
        self.metrics.sync().map_err(io(&path, "sync"))?;
        let stored = stored(self.config);
        let engine = &mut self.engine;
        let tensors = engine.tensors();
        let mut snapshot = Snapshot {
            tensors: &tensors,
            stored,
            values: &mut |part, tensor, first, out: &mut [f64]| engine.read_part(part, tensor, first, out),
            config_json: checkpoint::config_json(&self.config.model, stored),
            state: &self.state,
            loader: &self.loader_state,
        };
        let path = checkpoint::save(
            &self.folder.checkpoints(),
            self.config.checkpoint.keep_last,
            &mut snapshot,
        )?;
        self.progress.say(&format!("saved {}", path.display()));
        self.last.checkpoint = Some(path);
        Ok(())
    }

    /// Notes the digest of the whole run.
    fn close(&mut self) -> Result<(), RunError> {
        let path = self.folder.metrics();
        self.metrics.sync().map_err(io(&path, "sync"))?;
        let digest = run_fingerprint(&path)?;
        let mut manifest = Manifest::load(&self.folder.manifest())?;
        manifest.run_fingerprint = Some(digest);
        manifest.save(&self.folder.manifest())
    }
}

fn preset(config: &RunConfig) -> &'static str {
    crate::optim::DECAY_PRESETS
        .iter()
        .find(|(_, p)| *p == config.optimizer.decay)
        .map_or("", |(name, _)| name)
}

fn stored(config: &RunConfig) -> safetensors::Stored {
    match config.train.precision {
        Precision::Auto | Precision::Amp | Precision::F32 => safetensors::Stored::F32,
        Precision::F64 => safetensors::Stored::F64,
    }
}
