//! Which epoch and micro-step the `seq`-th micro-step of this loader is, with the next epoch built before it is needed.
//!
//! Epochs are built by one background thread, the next one as soon as half of the newest is assembled, so that an epoch
//! switch costs the consumer nothing; without workers they are built on demand. At most two epochs are alive at a time
//! (their permutations are the largest thing a loader holds: 4 bytes a sample each): whoever needs a third waits until
//! every micro-step of the oldest is assembled.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ceteris_samplers::{Epoch, Order, OrderError};

use super::batch::BatchStep;
use super::error::{LoaderError, panic_message};

/// Epochs alive at a time.
const LIVE: usize = 2;

/// Where a run starts and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochPlan {
    /// Epoch and micro-step within it that come first.
    pub first: (u64, u64),
    /// Counters of the run at the start of the first epoch: micro-steps and optimizer steps.
    pub base: (u64, u64),
    /// First epoch that is not run; `None` runs for ever.
    pub end: Option<u64>,
    /// Micro-steps this loader delivers at most.
    pub limit: Option<u64>,
}

/// One micro-step, located.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub index: Arc<dyn Epoch>,
    pub step: BatchStep,
}

#[derive(Debug)]
struct Live {
    epoch: u64,
    index: Arc<dyn Epoch>,
    /// `seq` of micro-step `start`.
    first_seq: u64,
    /// First micro-step of the epoch that this loader delivers.
    start: u64,
    micro_steps: u64,
    assembled: u64,
    base: (u64, u64),
}

impl Live {
    fn end_seq(&self) -> u64 {
        self.first_seq.saturating_add(self.micro_steps - self.start)
    }

    fn half_done(&self) -> bool {
        self.assembled >= (self.micro_steps - self.start) / 2
    }
}

#[derive(Debug)]
struct State {
    live: VecDeque<Live>,
    next: u64,
    /// Where the next epoch starts: `seq`, and the counters of the run.
    next_seq: u64,
    next_base: (u64, u64),
    building: bool,
    failed: Option<Arc<EpochFailure>>,
    closed: bool,
}

#[derive(Debug)]
struct EpochFailure {
    epoch: u64,
    kind: FailureKind,
}

#[derive(Debug)]
enum FailureKind {
    Order(String),
    Panic(String),
    Empty,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct EpochWindow {
    order: Arc<dyn Order>,
    plan: EpochPlan,
    state: Mutex<State>,
    changed: Condvar,
}

impl EpochWindow {
    /// Builds the first epoch and stands at its start.
    ///
    /// # Errors
    /// [`LoaderError::Epoch`], [`LoaderError::EmptyEpoch`], or an option error when the start lies past its end.
    pub(crate) fn new(order: Arc<dyn Order>, plan: EpochPlan) -> Result<EpochWindow, LoaderError> {
        let (epoch, start) = plan.first;
        let state = State {
            live: VecDeque::with_capacity(LIVE),
            next: epoch,
            next_seq: 0,
            next_base: plan.base,
            building: false,
            failed: None,
            closed: false,
        };
        let window = EpochWindow {
            order,
            plan,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        if plan.end.is_none_or(|end| epoch < end) {
            let index = window.order.epoch(epoch).map_err(|source| LoaderError::Epoch {
                epoch,
                source: Box::new(source),
            })?;
            if index.micro_steps() == 0 {
                return Err(window.empty(epoch));
            }
            if start >= index.micro_steps() {
                return Err(LoaderError::Option {
                    option: "micro_step",
                    reason: format!(
                        "epoch {epoch} has {} micro-steps, so {start} is past its end",
                        index.micro_steps()
                    ),
                });
            }
            window.push(&mut window.lock(), index, start);
        }
        Ok(window)
    }

    fn empty(&self, epoch: u64) -> LoaderError {
        let geometry = self.order.geometry();
        LoaderError::EmptyEpoch {
            epoch,
            num_samples: self.order.num_samples(),
            world_size: geometry.world_size,
            micro_batch_size: geometry.micro_batch_size,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, also where a panic of the order was caught.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, state: &mut State, index: Arc<dyn Epoch>, start: u64) {
        let (micro_steps, steps) = (index.micro_steps(), index.steps());
        let live = Live {
            epoch: state.next,
            index,
            first_seq: state.next_seq,
            start,
            micro_steps,
            assembled: 0,
            base: state.next_base,
        };
        state.next_seq = live.end_seq();
        state.next_base = (live.base.0 + micro_steps, live.base.1 + steps);
        state.next += 1;
        state.live.push_back(live);
    }

    /// More epochs are to be built.
    fn more(&self, state: &State) -> bool {
        self.plan.end.is_none_or(|end| state.next < end)
            && self.plan.limit.is_none_or(|limit| state.next_seq < limit)
    }

    /// Locates micro-step `seq`, waiting for its epoch; `None` past the end of the run. With `build`, an epoch that is
    /// missing is built here and now.
    pub(crate) fn locate(&self, seq: u64, build: bool) -> Result<Option<Located>, LoaderError> {
        if self.plan.limit.is_some_and(|limit| seq >= limit) {
            return Ok(None);
        }
        let mut state = self.lock();
        loop {
            if let Some(live) = state
                .live
                .iter()
                .find(|live| (live.first_seq..live.end_seq()).contains(&seq))
            {
                return Ok(Some(located(live, seq)));
            }
            if let Some(failure) = &state.failed {
                return Err(self.failure(failure));
            }
            if state.closed || (!self.more(&state) && !state.building) {
                return Ok(None);
            }
            if build && state.live.len() < LIVE {
                state = self.build(state);
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Locates micro-step `seq` if its epoch is alive, without waiting.
    pub(crate) fn peek(&self, seq: u64) -> Option<Located> {
        if self.plan.limit.is_some_and(|limit| seq >= limit) {
            return None;
        }
        let state = self.lock();
        state
            .live
            .iter()
            .find(|live| (live.first_seq..live.end_seq()).contains(&seq))
            .map(|live| located(live, seq))
    }

    /// Counts micro-step `seq` as assembled; the last one of an epoch frees it.
    pub(crate) fn assembled(&self, seq: u64) {
        let mut state = self.lock();
        let Some(live) = state
            .live
            .iter_mut()
            .find(|live| (live.first_seq..live.end_seq()).contains(&seq))
        else {
            return;
        };
        live.assembled += 1;
        let whole = live.micro_steps - live.start;
        let notable = live.assembled == whole || live.assembled == whole / 2;
        // Epochs end in order: the oldest goes first even if a short later one is complete before it.
        while state
            .live
            .front()
            .is_some_and(|live| live.assembled == live.micro_steps - live.start)
        {
            state.live.pop_front();
        }
        drop(state);
        if notable {
            self.changed.notify_all();
        }
    }

    /// Body of the background thread: builds epochs until the run needs no more.
    pub(crate) fn run_builder(&self) {
        let mut state = self.lock();
        while !state.closed && state.failed.is_none() && self.more(&state) {
            let room = state.live.len() < LIVE;
            if room && state.live.back().is_none_or(Live::half_done) {
                state = self.build(state);
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn build<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let epoch = state.next;
        state.building = true;
        drop(state);
        let built = match catch_unwind(AssertUnwindSafe(|| self.order.epoch(epoch))) {
            Ok(Ok(index)) => Ok(index),
            Ok(Err(error)) => Err(FailureKind::Order(full_message(&error))),
            Err(payload) => Err(FailureKind::Panic(panic_message(payload.as_ref()))),
        };
        let mut state = self.lock();
        state.building = false;
        match built {
            Ok(index) if index.micro_steps() > 0 => self.push(&mut state, index, 0),
            Ok(_) => {
                state.failed = Some(Arc::new(EpochFailure {
                    epoch,
                    kind: FailureKind::Empty,
                }))
            }
            Err(kind) => state.failed = Some(Arc::new(EpochFailure { epoch, kind })),
        }
        self.changed.notify_all();
        state
    }

    fn failure(&self, failure: &EpochFailure) -> LoaderError {
        let epoch = failure.epoch;
        match &failure.kind {
            FailureKind::Empty => self.empty(epoch),
            FailureKind::Panic(message) => LoaderError::EpochPanic {
                epoch,
                message: message.clone(),
            },
            FailureKind::Order(message) => LoaderError::EpochFailed {
                epoch,
                message: message.clone(),
            },
        }
    }

    /// Wakes everyone who waits and lets them end.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// An epoch is being built.
    pub(crate) fn is_building(&self) -> bool {
        self.lock().building
    }

    /// Epochs alive now, one being built included.
    pub(crate) fn live_epochs(&self) -> usize {
        let state = self.lock();
        state.live.len() + usize::from(state.building)
    }
}

fn full_message(error: &OrderError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn located(live: &Live, seq: u64) -> Located {
    let micro_step = live.start + (seq - live.first_seq);
    Located {
        index: live.index.clone(),
        step: counters(&*live.index, live.epoch, micro_step, live.base),
    }
}

/// Counters of a micro-step, from the epoch's own rule for the last, partial accumulation.
pub(crate) fn counters(index: &dyn Epoch, epoch: u64, micro_step: u64, base: (u64, u64)) -> BatchStep {
    let last = index.micro_steps() - 1;
    let step = index.step_of(micro_step);
    let step_start = first(0, micro_step, |m| index.step_of(m) >= step);
    let step_end = first(micro_step + 1, last + 1, |m| index.step_of(m) > step) - 1;
    BatchStep {
        epoch,
        micro_step,
        step,
        global_micro_step: base.0 + micro_step,
        global_step: base.1 + step,
        step_start,
        micro_steps_in_step: step_end - step_start + 1,
        closes_step: micro_step == step_end,
        closes_epoch: micro_step == last,
    }
}

/// First `m` of `from..to` at which `test` holds, `to` when there is none; `test` turns true once.
fn first(mut from: u64, mut to: u64, test: impl Fn(u64) -> bool) -> u64 {
    while from < to {
        let middle = from + (to - from) / 2;
        if test(middle) {
            to = middle
        } else {
            from = middle + 1
        }
    }
    from
}
