//! Epochs of a run: where a micro-step lies, and its epoch's index, built before it is needed.
//!
//! All epochs of an order have the same number of micro-steps, so the `seq`-th micro-step of a loader is located by
//! arithmetic. Indices are built by one background thread, the next one as soon as half of the newest is assembled, so
//! that an epoch switch costs the consumer nothing; without workers they are built on demand. At most two epochs are
//! alive at a time (their permutations are the largest thing a loader holds: 4 bytes a sample each): whoever needs a
//! third waits until every micro-step of the oldest is assembled.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ceteris_samplers::{Epoch, Order};

use super::batch::BatchStep;
use super::error::{LoaderError, panic_message};

/// Epochs alive at a time.
const LIVE: usize = 2;

/// Where a run starts and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochPlan {
    /// Epoch and micro-step within it that come first.
    pub first: (u64, u64),
    /// Micro-steps of an epoch, at least 1.
    pub micro_steps: u64,
    /// Optimizer steps of an epoch.
    pub steps: u64,
    /// First epoch that is not run; `None` runs for ever.
    pub end: Option<u64>,
    /// Micro-steps this loader delivers at most.
    pub limit: Option<u64>,
}

impl EpochPlan {
    /// Epoch and micro-step of the `seq`-th micro-step, `None` past the end of the run.
    fn at(&self, seq: u64) -> Option<(u64, u64)> {
        if self.limit.is_some_and(|limit| seq >= limit) {
            return None;
        }
        let total = self.first.1.checked_add(seq)?;
        let epoch = self.first.0.checked_add(total / self.micro_steps)?;
        self.end
            .is_none_or(|end| epoch < end)
            .then_some((epoch, total % self.micro_steps))
    }

    /// Micro-steps of `epoch` that this loader delivers, regardless of `limit`.
    fn whole(&self, epoch: u64) -> u64 {
        if epoch == self.first.0 {
            self.micro_steps - self.first.1
        } else {
            self.micro_steps
        }
    }

    /// Some micro-step of `epoch` is to be delivered.
    fn wants(&self, epoch: u64) -> bool {
        let before = (epoch - self.first.0)
            .saturating_mul(self.micro_steps)
            .saturating_sub(self.first.1);
        self.end.is_none_or(|end| epoch < end) && self.limit.is_none_or(|limit| before < limit)
    }
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
    assembled: u64,
}

#[derive(Debug)]
struct State {
    live: VecDeque<Live>,
    /// Next epoch to build.
    next: u64,
    building: bool,
    failed: Option<(u64, Failure)>,
    closed: bool,
}

/// Why an epoch could not be built, for everyone who waits for it.
#[derive(Clone, Debug)]
enum Failure {
    Order(String),
    Panic(String),
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
    /// Builds the first epoch.
    ///
    /// # Errors
    /// [`LoaderError::EpochFailed`], or an option error when the start lies past the end of its epoch.
    pub(crate) fn new(order: Arc<dyn Order>, plan: EpochPlan) -> Result<EpochWindow, LoaderError> {
        let (epoch, start) = plan.first;
        if start >= plan.micro_steps {
            return Err(LoaderError::Option {
                option: "micro_step",
                reason: format!(
                    "an epoch has micro-steps 0 to {}, so {start} is past its end",
                    plan.micro_steps - 1
                ),
            });
        }
        let state = State {
            live: VecDeque::with_capacity(LIVE),
            next: epoch,
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
        if plan.wants(epoch) {
            let state = window.build(window.lock());
            if let Some((epoch, failure)) = &state.failed {
                return Err(failed(*epoch, failure.clone()));
            }
        }
        Ok(window)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, also where a panic of the order was caught.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locates micro-step `seq`, waiting for its epoch; `None` past the end of the run. With `build`, an epoch that is
    /// missing is built here and now.
    pub(crate) fn locate(&self, seq: u64, build: bool) -> Result<Option<Located>, LoaderError> {
        let Some((epoch, micro_step)) = self.plan.at(seq) else {
            return Ok(None);
        };
        let mut state = self.lock();
        loop {
            if let Some(live) = state.live.iter().find(|live| live.epoch == epoch) {
                let index = Arc::clone(&live.index);
                drop(state);
                return Ok(Some(self.located(index, epoch, micro_step)));
            }
            if let Some((epoch, failure)) = &state.failed {
                return Err(failed(*epoch, failure.clone()));
            }
            if state.closed {
                return Ok(None);
            }
            state = if build && state.live.len() < LIVE {
                self.build(state)
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// Locates micro-step `seq` if its epoch is alive, without waiting.
    pub(crate) fn peek(&self, seq: u64) -> Option<Located> {
        let (epoch, micro_step) = self.plan.at(seq)?;
        let index = Arc::clone(&self.lock().live.iter().find(|live| live.epoch == epoch)?.index);
        Some(self.located(index, epoch, micro_step))
    }

    /// Counts micro-step `seq` as assembled; the last one of an epoch frees it.
    pub(crate) fn assembled(&self, seq: u64) {
        let Some((epoch, _)) = self.plan.at(seq) else {
            return;
        };
        let whole = self.plan.whole(epoch);
        let mut state = self.lock();
        let Some(live) = state.live.iter_mut().find(|live| live.epoch == epoch) else {
            return;
        };
        live.assembled += 1;
        let notable = live.assembled == whole || live.assembled == whole / 2;
        // Epochs are freed in order: a later one may be complete before the oldest is.
        while state
            .live
            .front()
            .is_some_and(|live| live.assembled == self.plan.whole(live.epoch))
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
        while !state.closed && state.failed.is_none() && self.plan.wants(state.next) {
            let half_done = |live: &Live| live.assembled >= self.plan.whole(live.epoch) / 2;
            state = if state.live.len() < LIVE && state.live.back().is_none_or(half_done) {
                self.build(state)
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// Builds the next epoch, unlocked meanwhile.
    fn build<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let epoch = state.next;
        state.building = true;
        drop(state);
        let built = match catch_unwind(AssertUnwindSafe(|| self.order.epoch(epoch))) {
            Ok(Ok(index)) if index.micro_steps() == self.plan.micro_steps => Ok(index),
            Ok(Ok(index)) => Err(Failure::Order(format!(
                "it has {} micro-steps, not {} as every epoch of this order",
                index.micro_steps(),
                self.plan.micro_steps
            ))),
            Ok(Err(error)) => Err(Failure::Order(with_causes(&error))),
            Err(payload) => Err(Failure::Panic(panic_message(payload.as_ref()))),
        };
        let mut state = self.lock();
        state.building = false;
        match built {
            Ok(index) => {
                state.live.push_back(Live {
                    epoch,
                    index,
                    assembled: 0,
                });
                state.next += 1;
            }
            Err(failure) => state.failed = Some((epoch, failure)),
        }
        self.changed.notify_all();
        state
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

    fn located(&self, index: Arc<dyn Epoch>, epoch: u64, micro_step: u64) -> Located {
        let last = self.plan.micro_steps - 1;
        let step = index.step_of(micro_step);
        let step_start = first(0, micro_step, |m| index.step_of(m) >= step);
        let step_end = first(micro_step + 1, last + 1, |m| index.step_of(m) > step) - 1;
        let step = BatchStep {
            epoch,
            micro_step,
            step,
            global_micro_step: epoch * self.plan.micro_steps + micro_step,
            global_step: epoch * self.plan.steps + step,
            step_start,
            micro_steps_in_step: step_end - step_start + 1,
            closes_step: micro_step == step_end,
            closes_epoch: micro_step == last,
        };
        Located { index, step }
    }
}

fn failed(epoch: u64, failure: Failure) -> LoaderError {
    match failure {
        Failure::Panic(message) => LoaderError::EpochPanic { epoch, message },
        Failure::Order(message) => LoaderError::EpochFailed { epoch, message },
    }
}

/// The message of an error with those of its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_steps_are_located_by_arithmetic() {
        let plan = EpochPlan {
            first: (2, 3),
            micro_steps: 5,
            steps: 3,
            end: Some(4),
            limit: None,
        };
        let all: Vec<_> = (0..9).map(|seq| plan.at(seq)).collect();
        assert_eq!(all[..3], [Some((2, 3)), Some((2, 4)), Some((3, 0))]);
        assert_eq!(all[6..], [Some((3, 4)), None, None]);
        assert_eq!((plan.whole(2), plan.whole(3)), (2, 5));
        assert!(plan.wants(3) && !plan.wants(4));
        let limited = EpochPlan {
            limit: Some(2),
            ..plan
        };
        assert_eq!(limited.at(2), None);
        assert!(
            limited.wants(2) && !limited.wants(3),
            "epoch 3 starts where the limit ends"
        );
        let endless = EpochPlan { end: None, ..plan };
        assert_eq!(endless.at(u64::MAX), None, "an overflow ends the run");
    }

    #[test]
    fn the_first_index_is_found_by_halving() {
        assert_eq!(first(0, 10, |m| m >= 7), 7);
        assert_eq!(first(0, 10, |_| false), 10);
        assert_eq!(first(4, 4, |_| true), 4);
    }
}
