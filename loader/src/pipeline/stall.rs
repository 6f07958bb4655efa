//! Watches a loader from the side: says what a long wait is for, and notices files that change under the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::sync::Parker;

use super::error::LoaderError;
use super::options::{Notice, NoticeSink};
use super::worker::{Assembler, Status};

/// How often files are checked for changes.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// What the consumer and the watching thread share.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    /// Milliseconds from `start` plus one since when the consumer waits; 0 while it does not.
    waiting_since: AtomicU64,
    /// `seq` of the micro-step waited for, and its number since the start of the run.
    waiting_for: AtomicU64,
    global_base: u64,
    has_failed: AtomicBool,
    failure: Mutex<Option<LoaderError>>,
    closed: AtomicBool,
}

impl Watch {
    pub(crate) fn new(global_base: u64) -> Watch {
        Watch {
            start: Instant::now(),
            waiting_since: AtomicU64::new(0),
            waiting_for: AtomicU64::new(0),
            global_base,
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            closed: AtomicBool::new(false),
        }
    }

    /// The consumer starts to wait for micro-step `seq`.
    pub(crate) fn begin(&self, seq: u64) {
        self.waiting_for.store(seq, Ordering::Relaxed);
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.waiting_since.store(now + 1, Ordering::Release);
    }

    /// The wait is over.
    pub(crate) fn end(&self) {
        self.waiting_since.store(0, Ordering::Release);
    }

    /// A failure found by the watching thread.
    pub(crate) fn take_failure(&self) -> Option<LoaderError> {
        if !self.has_failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Body of the watching thread.
    pub(crate) fn run(
        &self,
        parker: &Parker,
        assembler: &Assembler,
        statuses: &[Arc<Status>],
        period: Duration,
        notices: &NoticeSink,
    ) {
        let tick = (period / 4)
            .min(Duration::from_millis(250))
            .max(Duration::from_millis(1));
        let mut reported = (0, 0);
        let mut checked = Instant::now();
        while !self.closed.load(Ordering::Acquire) {
            parker.park_timeout(tick);
            if checked.elapsed() >= CHECK_EVERY && !self.has_failed.load(Ordering::Acquire) {
                checked = Instant::now();
                if let Err(source) = assembler.source.check_unchanged() {
                    *self.failure.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(LoaderError::Changed(Box::new(source)));
                    self.has_failed.store(true, Ordering::Release);
                }
            }
            let since = self.waiting_since.load(Ordering::Acquire);
            if since == 0 {
                continue;
            }
            if reported.0 != since {
                reported = (since, 0);
            }
            let waited = self
                .start
                .elapsed()
                .saturating_sub(Duration::from_millis(since - 1));
            let periods = (waited.as_nanos() / period.as_nanos().max(1)) as u64;
            if periods > reported.1 {
                reported.1 = periods;
                let seq = self.waiting_for.load(Ordering::Relaxed);
                let notice = Notice::Stall {
                    seconds: waited.as_secs(),
                    global_micro_step: self.global_base + seq,
                    doing: self.doing(seq, assembler, statuses),
                };
                notices.send(&notice);
            }
        }
    }

    fn doing(&self, seq: u64, assembler: &Assembler, statuses: &[Arc<Status>]) -> String {
        let worker = (seq % statuses.len() as u64) as usize;
        let status = &statuses[worker];
        match status.sample_at(&*assembler.source) {
            Some(sample) => format!("worker {worker} is reading {sample} for {}", status.at()),
            None if assembler.window.is_building() => {
                format!("worker {worker} waits for the next epoch's permutation")
            }
            None => format!("worker {worker} has not started it"),
        }
    }
}
