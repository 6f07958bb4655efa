//! The loader: what a trainer or the CLI takes batches from.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ceteris_samplers::Order;
use crossbeam::sync::{Parker, Unparker};

use super::batch::{Batch, BatchBuffer, BatchShape, BatchStep};
use super::elastic::{ElasticReport, Seek, deal_end, seek};
use super::epochs::{EpochPlan, EpochWindow};
use super::error::LoaderError;
use super::metrics::LoaderMetrics;
use super::options::{LoaderOptions, Notice};
use super::ring::{ConsumerEnd, Job, Lanes, Taken, WorkerEnd, ring};
use super::stall::Watch;
use super::state::{DatasetIdentity, Difference, LoaderState, STATE_VERSION, SourceCount, StateError};
use super::worker::{Assembler, Scratch, Status};
use crate::source::Source;

/// A failure of a later micro-step waits this long for the batches before it to be taken.
const FAILURE_GRACE: Duration = Duration::from_secs(1);
/// How often a waiting consumer looks whether it should stop.
const WAIT_TICK: Duration = Duration::from_millis(50);
/// How long dropping a loader waits for workers; one stuck in a read is left behind and ends with the read.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// Delivers the micro-steps of an order, strictly one after the other, from buffers that are reused for the whole run.
///
/// What is delivered depends on the source, the order and the start alone, not on workers, prefetch or timing.
pub struct Loader {
    assembler: Arc<Assembler>,
    order: Arc<dyn Order>,
    lanes: Arc<Lanes>,
    consumer: ConsumerEnd,
    /// The consumer's own end when there are no workers.
    inline: Option<(WorkerEnd, Arc<Status>, Scratch)>,
    threads: Vec<JoinHandle<()>>,
    watch: Arc<Watch>,
    waker: Unparker,
    options: LoaderOptions,
    buffers: usize,
    seq: u64,
    ended: bool,
    failed: Option<String>,
    metrics: LoaderMetrics,
    dataset: DatasetIdentity,
    progress: Progress,
}

/// Where a loader's start comes from.
enum Origin {
    /// `options.start`: what a run has consumed there follows from the order.
    Options,
    /// A state.
    State(Option<ElasticReport>),
}

/// What has been consumed, as of the last batch taken.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    /// Epoch and micro-step within it of the next batch.
    pub next: (u64, u64),
    pub global_micro_step: u64,
    pub global_step: u64,
    pub consumed: Vec<u64>,
}

impl Progress {
    fn advance(&mut self, step: &BatchStep, consumed: &[u64]) {
        self.next = if step.closes_epoch {
            (step.epoch + 1, 0)
        } else {
            (step.epoch, step.micro_step + 1)
        };
        self.global_micro_step = step.global_micro_step + 1;
        self.global_step = step.global_step + u64::from(step.closes_step);
        for (sum, &n) in self.consumed.iter_mut().zip(consumed) {
            *sum += n;
        }
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("order", &self.order)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// Starts a loader at `options.start`. The first epoch is built before this returns; no sample is read by it, only
    /// by the workers it starts.
    ///
    /// Counters of the run (`global_micro_step`, `global_step`, `consumed_samples`) are those of a run from epoch 0 that
    /// has come to `options.start`; counts by part of the dataset start at 0.
    ///
    /// # Errors
    /// Options that make no sense, an order of another size than the source, an epoch without micro-steps, memory.
    pub fn new(
        source: Arc<dyn Source>,
        order: Arc<dyn Order>,
        options: LoaderOptions,
    ) -> Result<Loader, LoaderError> {
        let parts = source.part_names().len().max(1);
        let (epoch, micro_step) = options.start;
        let at = Progress {
            next: options.start,
            global_micro_step: epoch
                .saturating_mul(order.micro_steps_per_epoch())
                .saturating_add(micro_step),
            global_step: epoch.saturating_mul(order.steps_per_epoch()),
            consumed: vec![0; parts],
        };
        Loader::start(source, order, options, at, Origin::Options)
    }

    /// Goes on where `state` stands: the batches are those the interrupted run would have delivered next, at the cost of
    /// building one epoch and no read before the first sample needed.
    ///
    /// # Errors
    /// [`LoaderError::State`] naming everything in which the state belongs to another run.
    pub fn resume(
        source: Arc<dyn Source>,
        order: Arc<dyn Order>,
        options: LoaderOptions,
        state: &LoaderState,
    ) -> Result<Loader, LoaderError> {
        let seek = seek_state(&*source, &*order, &options, state)?;
        let consumed = match &state.consumed_samples_per_source[..] {
            [] => vec![state.consumed_samples],
            parts => parts.iter().map(|part| part.samples).collect(),
        };
        let at = Progress {
            next: seek.next,
            global_micro_step: seek.global_micro_step,
            global_step: seek.global_step,
            consumed,
        };
        Loader::start(source, order, options, at, Origin::State(seek.report))
    }

    /// Epoch and micro-step at which [`Loader::resume`] would go on, without starting anything.
    ///
    /// # Errors
    /// As [`Loader::resume`], as far as the state is concerned.
    pub fn resume_point(
        source: &dyn Source,
        order: &dyn Order,
        options: &LoaderOptions,
        state: &LoaderState,
    ) -> Result<(u64, u64), LoaderError> {
        Ok(seek_state(source, order, options, state)?.next)
    }

    fn start(
        source: Arc<dyn Source>,
        order: Arc<dyn Order>,
        options: LoaderOptions,
        mut progress: Progress,
        origin: Origin,
    ) -> Result<Loader, LoaderError> {
        options.check()?;
        let (fresh, mut report) = match origin {
            Origin::Options => (true, None),
            Origin::State(report) => (false, report),
        };
        if order.num_samples() != source.num_samples() {
            return Err(LoaderError::SizeMismatch {
                order: order.num_samples(),
                dataset: source.num_samples(),
            });
        }
        let geometry = order.geometry();
        let fits = |what: &'static str, n: u64| {
            usize::try_from(n)
                .ok()
                .filter(|&n| n > 0)
                .ok_or_else(|| LoaderError::Option {
                    option: what,
                    reason: format!("{n} is not a usable size"),
                })
        };
        let outputs = options
            .documents
            .map_or_else(Default::default, |rule| rule.outputs());
        options.collator.check(options.seq_length)?;
        let sample_tokens = options.collator.width(options.seq_length).max(options.seq_length);
        let shape = Arc::new(BatchShape {
            ranks: options.ranks.resolve(geometry.world_size)?,
            micro_batch_size: fits("micro_batch_size", geometry.micro_batch_size)?,
            seq_length: options.seq_length,
            extra_tokens: sample_tokens - options.seq_length,
            outputs: options
                .collator
                .outputs()
                .intersection(options.outputs)
                .union(outputs),
            fingerprints: options.fingerprints,
            positions: options.positions,
        });
        let parts = progress.consumed.len();
        let (micro_steps, steps) = (order.micro_steps_per_epoch(), order.steps_per_epoch());
        if micro_steps == 0 {
            return Err(LoaderError::EmptyEpoch {
                num_samples: order.num_samples(),
                world_size: geometry.world_size,
                micro_batch_size: geometry.micro_batch_size,
            });
        }
        let per_epoch = micro_steps.max(order.num_positions());
        if progress
            .next
            .0
            .checked_add(1)
            .and_then(|epochs| epochs.checked_mul(per_epoch))
            .is_none()
        {
            return Err(LoaderError::Option {
                option: "epoch",
                reason: format!("epoch {} is past what 64-bit counters hold", progress.next.0),
            });
        }
        let end = [options.epochs, order.num_epochs()].into_iter().flatten().min();
        let plan = EpochPlan {
            first: progress.next,
            micro_steps,
            steps,
            end,
            limit: options.max_micro_steps,
        };
        let window = EpochWindow::new(Arc::clone(&order), plan)?;
        if let Some(first) = window.peek(0) {
            progress.global_step = first.step.global_step;
            if let ([only], true) = (&mut progress.consumed[..], fresh) {
                let end = deal_end(&*first.index, geometry);
                let within = first.step.micro_step * geometry.samples_per_micro_step();
                *only = first.step.epoch * end + within.min(end);
            }
            if let Some(report) = &mut report {
                report.name_rows(&*first.index, &*source);
            }
        }
        let count = options.prefetch + 1;
        let mut buffers = Vec::with_capacity(count);
        for _ in 0..count {
            buffers.push(BatchBuffer::new(Arc::clone(&shape), parts, &*options.allocator)?);
        }
        let (lanes, ends, consumer) = ring(options.workers.max(1), buffers);
        let assembler = Arc::new(Assembler {
            source: Arc::clone(&source),
            window,
            shape,
            world_size: geometry.world_size,
            collator: Arc::clone(&options.collator),
            documents: options.documents,
            pad_token: options.pad_token,
            parts,
            workers: options.workers as u64,
            page_in_micro_steps: options.page_in_micro_steps,
        });
        let parker = Parker::new();
        let mut loader = Loader {
            dataset: identity(&*source, &options),
            assembler,
            order,
            lanes,
            consumer,
            inline: None,
            threads: Vec::new(),
            watch: Arc::new(Watch::new(progress.global_micro_step)),
            waker: parker.unparker().clone(),
            buffers: count,
            seq: 0,
            ended: false,
            failed: None,
            metrics: LoaderMetrics::default(),
            progress,
            options,
        };
        for warning in loader.order.spec().warnings() {
            loader.options.notices.send(&Notice::Order(warning));
        }
        if let Some(report) = report {
            loader.options.notices.send(&Notice::Elastic(Box::new(report)));
        }
        loader.start_threads(ends, parker)?;
        Ok(loader)
    }

    fn start_threads(&mut self, ends: Vec<WorkerEnd>, parker: Parker) -> Result<(), LoaderError> {
        let statuses: Vec<Arc<Status>> = ends.iter().map(|_| Arc::new(Status::new())).collect();
        let page_in = self.options.page_in;
        if self.options.workers == 0 {
            for (end, status) in ends.into_iter().zip(&statuses) {
                self.inline = Some((end, Arc::clone(status), self.assembler.scratch(page_in)));
            }
        } else {
            let assembler = Arc::clone(&self.assembler);
            self.spawn("ceteris-epochs".to_owned(), move || {
                assembler.window.run_builder()
            })?;
            for (worker, (end, status)) in ends.into_iter().zip(&statuses).enumerate() {
                let (assembler, status) = (Arc::clone(&self.assembler), Arc::clone(status));
                let scratch = assembler.scratch(page_in);
                self.spawn(format!("ceteris-load-{worker}"), move || {
                    assembler.run(worker, &end, &status, scratch)
                })?;
            }
        }
        let (watch, assembler) = (Arc::clone(&self.watch), Arc::clone(&self.assembler));
        let (period, notices) = (self.options.stall_period, self.options.notices.clone());
        self.spawn("ceteris-watch".to_owned(), move || {
            watch.run(&parker, &assembler, &statuses, period, &notices)
        })
    }

    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> Result<(), LoaderError> {
        let started = thread::Builder::new().name(name.clone()).spawn(body);
        self.threads
            .push(started.map_err(|source| LoaderError::Thread { name, source })?);
        Ok(())
    }

    /// The next batch; `None` after the last one.
    ///
    /// # Errors
    /// What a worker ran into, in micro-step order: the batches before the one that failed are delivered first unless
    /// the failure is a second old. After an error nothing more is delivered; [`LoaderError::Interrupted`] and
    /// [`LoaderError::AllBuffersHeld`] are not failures, the loader can go on.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, LoaderError> {
        if let Some(message) = &self.failed {
            return Err(LoaderError::AlreadyFailed(message.clone()));
        }
        if self.ended {
            return Ok(None);
        }
        let asked = Instant::now();
        let taken = self.take();
        self.watch.end();
        match taken {
            Ok(Some((mut buffer, occupancy))) => {
                buffer.metrics.wait = asked.elapsed();
                buffer.metrics.occupancy = occupancy;
                self.metrics.add(&buffer.metrics);
                self.progress.advance(&buffer.step, &buffer.consumed);
                let batch = Batch::new(buffer, Arc::clone(&self.lanes));
                self.lanes.take();
                self.seq += 1;
                Ok(Some(batch))
            }
            Ok(None) => {
                self.ended = true;
                // What was delivered is only worth its fingerprint if the files are still the ones opened.
                self.check_source().map(|()| None)
            }
            Err(error) => {
                if !matches!(
                    error,
                    LoaderError::Interrupted { .. } | LoaderError::AllBuffersHeld { .. }
                ) {
                    self.failed = Some(error.to_string());
                }
                Err(error)
            }
        }
    }

    fn take(&mut self) -> Result<Option<(Box<BatchBuffer>, usize)>, LoaderError> {
        if self.inline.is_some() {
            self.check_stop()?;
            return self.assemble_here();
        }
        let mut wait = None;
        loop {
            self.check_stop()?;
            self.consumer.collect();
            if let Some(error) = self.consumer.take_old_failure(FAILURE_GRACE) {
                return Err(*error);
            }
            let occupancy = self.consumer.occupancy();
            match self.consumer.take(self.seq, wait) {
                Taken::Ready(buffer) => return Ok(Some((buffer, occupancy))),
                Taken::End => return Ok(None),
                Taken::Failed(error) => return Err(*error),
                Taken::Gone => {
                    return Err(LoaderError::WorkersGone {
                        global_micro_step: self.progress.global_micro_step,
                    });
                }
                Taken::NotYet => {
                    if self.lanes.held() == self.buffers {
                        return Err(LoaderError::AllBuffersHeld {
                            buffers: self.buffers,
                        });
                    }
                    if wait.is_none() {
                        self.watch.begin(self.seq);
                        wait = Some(WAIT_TICK);
                    }
                }
            }
        }
    }

    fn assemble_here(&mut self) -> Result<Option<(Box<BatchBuffer>, usize)>, LoaderError> {
        let Some((end, status, scratch)) = &mut self.inline else {
            return Ok(None);
        };
        let Ok(Job::Assemble(_, buffer)) = end.jobs.try_recv() else {
            return Err(LoaderError::AllBuffersHeld {
                buffers: self.buffers,
            });
        };
        self.watch.begin(self.seq);
        match self.assembler.job(0, self.seq, buffer, status, scratch, true) {
            super::ring::Done::Ready(_, buffer) => Ok(Some((buffer, 0))),
            super::ring::Done::End(_) => Ok(None),
            super::ring::Done::Failed(_, _, error) => Err(*error),
        }
    }

    fn check_stop(&mut self) -> Result<(), LoaderError> {
        if let Some(error) = self.watch.take_failure() {
            return Err(error);
        }
        match self
            .options
            .stop
            .as_ref()
            .and_then(super::signals::StopSignal::requested)
        {
            Some(signal) => Err(LoaderError::Interrupted {
                signal,
                global_micro_step: self.progress.global_micro_step,
            }),
            None => Ok(()),
        }
    }

    fn check_source(&mut self) -> Result<(), LoaderError> {
        self.assembler.source.check_unchanged().map_err(|source| {
            let error = LoaderError::Changed(Box::new(source));
            self.failed = Some(error.to_string());
            error
        })
    }

    /// Where the run stands after the last batch taken.
    ///
    /// # Errors
    /// [`LoaderError::Changed`] when a file of the dataset is no longer the one that was opened.
    pub fn state(&mut self) -> Result<LoaderState, LoaderError> {
        self.check_source()?;
        let mut state = blank_state(&*self.assembler.source, &*self.order, &self.options);
        state.dataset = self.dataset.clone();
        (state.epoch, state.micro_step) = self.progress.next;
        state.global_micro_step = self.progress.global_micro_step;
        state.global_step = self.progress.global_step;
        state.consumed_samples = self.progress.consumed.iter().sum();
        let names = self.assembler.source.part_names();
        state.consumed_samples_per_source = names
            .into_iter()
            .zip(&self.progress.consumed)
            .map(|(source, &samples)| SourceCount { source, samples })
            .collect();
        Ok(state)
    }

    /// Sums over the batches taken so far.
    pub fn metrics(&self) -> LoaderMetrics {
        self.metrics
    }

    /// Shape of every batch.
    pub fn shape(&self) -> &BatchShape {
        &self.assembler.shape
    }

    /// The order.
    pub fn order(&self) -> &Arc<dyn Order> {
        &self.order
    }

    /// Epochs whose permutation is held now, one being built included: at most two.
    pub fn live_epochs(&self) -> usize {
        self.assembler.window.live_epochs()
    }
}

fn identity(source: &dyn Source, options: &LoaderOptions) -> DatasetIdentity {
    let name = |path: &std::path::PathBuf| {
        path.file_name().map_or_else(
            || path.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        )
    };
    DatasetIdentity {
        fingerprint: options.dataset_fingerprint.clone(),
        num_samples: source.num_samples(),
        files: source.files().iter().map(name).collect(),
    }
}

/// A state of this run without a position.
/// Refuses a state of another run, and finds where one of this run goes on.
fn seek_state(
    source: &dyn Source,
    order: &dyn Order,
    options: &LoaderOptions,
    state: &LoaderState,
) -> Result<Seek, LoaderError> {
    let mut differences = state.differences(&blank_state(source, order, options));
    let names = source.part_names();
    let saved: Vec<&str> = state
        .consumed_samples_per_source
        .iter()
        .map(|c| &*c.source)
        .collect();
    if saved != names {
        differences.push(Difference {
            what: "sources".to_owned(),
            saved: saved.join(", "),
            now: names.join(", "),
        });
    }
    if !differences.is_empty() {
        return Err(StateError::Mismatch { differences }.into());
    }
    Ok(seek(state, order, options.allow_global_batch_change)?)
}

fn blank_state(source: &dyn Source, order: &dyn Order, options: &LoaderOptions) -> LoaderState {
    LoaderState {
        state_version: STATE_VERSION,
        ceteris_version: env!("CARGO_PKG_VERSION").to_owned(),
        order: order.spec().clone(),
        geometry: order.geometry(),
        dataset: identity(source, options),
        seq_length: options.seq_length as u64,
        epoch: 0,
        micro_step: 0,
        global_micro_step: 0,
        global_step: 0,
        consumed_samples: 0,
        consumed_samples_per_source: Vec::new(),
    }
}

impl Iterator for Loader {
    type Item = Result<Batch, LoaderError>;

    /// Ends after the first error as well.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed.is_some() {
            return None;
        }
        self.next_batch().transpose()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.assembler.window.close();
        self.watch.close();
        self.waker.unpark();
        self.lanes.stop();
        let deadline = Instant::now() + STOP_WAIT;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_micros(200));
            }
            if thread.is_finished() {
                // A worker's panic was already delivered as an error.
                drop(thread.join());
            }
        }
    }
}
