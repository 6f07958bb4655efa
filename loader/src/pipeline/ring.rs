//! The ring of batch buffers, as credits over crossbeam channels.
//!
//! `buffers` buffers go round. A buffer that comes back becomes the credit to assemble the next micro-step nobody has a
//! buffer for yet, and goes straight to the one worker that assembles it: `seq mod workers`, `seq` counted from where
//! this loader started. Credits are given in micro-step order, so a more urgent micro-step always has its buffer first, at
//! any ratio of workers to buffers and in whatever order the consumer gives buffers back; back-pressure is the absence of
//! credits. Finished buffers come back over one channel in any order; the consumer puts them in micro-step order in a
//! table of `buffers` entries. Every micro-step under way holds a buffer and they are consecutive, so no two share an
//! entry.
//!
//! The thread sanitizer over it, queues and standard library included (needs `rustup component add rust-src` for nightly):
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu \
//!     -p ceteris-tests --test pipeline
//! ```
//!
//! All queues are bounded by the number of buffers and allocated up front: nothing here allocates afterwards, and no
//! send can block.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use super::batch::BatchBuffer;
use super::error::LoaderError;

/// What a worker gets.
#[derive(Debug)]
pub(crate) enum Job {
    /// Assemble this micro-step of the run into this buffer.
    Assemble(u64, Box<BatchBuffer>),
    /// End.
    Stop,
}

/// What a worker gives back.
#[derive(Debug)]
pub(crate) enum Done {
    /// The micro-step is assembled.
    Ready(u64, Box<BatchBuffer>),
    /// The run ends before this micro-step.
    End(u64),
    /// Assembling this micro-step failed, at this time.
    Failed(u64, Instant, Box<LoaderError>),
}

/// The way back for buffers: one lane a worker.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Sender<Job>>,
    /// Next micro-step to get a buffer.
    next: AtomicU64,
    held: AtomicUsize,
}

impl Lanes {
    /// Counts a buffer that the consumer took.
    pub(crate) fn take(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Buffers in the consumer's hands.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// Turns a buffer the consumer held into a credit. After the end of the workers it is freed.
    pub(crate) fn give_back(&self, buffer: Box<BatchBuffer>) {
        self.credit(buffer);
        // Counted last: while the consumer sees all buffers held, none is under way to a worker.
        self.held.fetch_sub(1, Ordering::Release);
    }

    fn credit(&self, buffer: Box<BatchBuffer>) {
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let lane = &self.lanes[(seq % self.lanes.len() as u64) as usize];
        // A lane has room for every buffer and the stop message, so this fails only when the worker is gone.
        drop(lane.try_send(Job::Assemble(seq, buffer)));
    }

    /// Tells every worker to end.
    pub(crate) fn stop(&self) {
        for lane in &self.lanes {
            drop(lane.try_send(Job::Stop));
        }
    }
}

/// The worker's end of the ring.
#[derive(Debug)]
pub(crate) struct WorkerEnd {
    /// Jobs of this worker.
    pub(crate) jobs: Receiver<Job>,
    /// Results of all workers.
    pub(crate) done: Sender<Done>,
}

/// The consumer's end of the ring.
#[derive(Debug)]
pub(crate) struct ConsumerEnd {
    done: Receiver<Done>,
    waiting: Vec<Option<Done>>,
    ready: usize,
    failures: usize,
}

/// What waiting for a micro-step came to.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Its buffer.
    Ready(Box<BatchBuffer>),
    /// The run ends here.
    End,
    /// It failed.
    Failed(Box<LoaderError>),
    /// Nothing within the time given.
    NotYet,
    /// No worker is left.
    Gone,
}

/// A ring for `workers` workers (at least one) over the given buffers.
pub(crate) fn ring(
    workers: usize,
    buffers: Vec<BatchBuffer>,
) -> (std::sync::Arc<Lanes>, Vec<WorkerEnd>, ConsumerEnd) {
    let count = buffers.len();
    let (done_send, done_receive) = bounded(count);
    let (mut lanes, mut ends) = (Vec::with_capacity(workers), Vec::with_capacity(workers));
    for _ in 0..workers {
        let (send, receive) = bounded(count + 1);
        lanes.push(send);
        ends.push(WorkerEnd {
            jobs: receive,
            done: done_send.clone(),
        });
    }
    let lanes = Lanes {
        lanes,
        next: AtomicU64::new(0),
        held: AtomicUsize::new(0),
    };
    for buffer in buffers {
        lanes.credit(Box::new(buffer));
    }
    let mut waiting = Vec::with_capacity(count);
    waiting.resize_with(count, || None);
    (
        std::sync::Arc::new(lanes),
        ends,
        ConsumerEnd {
            done: done_receive,
            waiting,
            ready: 0,
            failures: 0,
        },
    )
}

impl ConsumerEnd {
    fn slot(&self, seq: u64) -> usize {
        (seq % self.waiting.len() as u64) as usize
    }

    fn store(&mut self, done: Done) {
        let seq = match &done {
            Done::Ready(seq, _) | Done::End(seq) | Done::Failed(seq, ..) => *seq,
        };
        self.ready += usize::from(matches!(done, Done::Ready(..)));
        self.failures += usize::from(matches!(done, Done::Failed(..)));
        let slot = self.slot(seq);
        debug_assert!(self.waiting[slot].is_none(), "two live micro-steps in one slot");
        self.waiting[slot] = Some(done);
    }

    /// Puts everything finished so far in its place.
    pub(crate) fn collect(&mut self) {
        while let Ok(done) = self.done.try_recv() {
            self.store(done);
        }
    }

    /// Batches assembled and not yet taken.
    pub(crate) fn occupancy(&self) -> usize {
        self.ready
    }

    /// Takes micro-step `seq`, waiting up to `timeout` (not at all when `None`).
    pub(crate) fn take(&mut self, seq: u64, timeout: Option<Duration>) -> Taken {
        let slot = self.slot(seq);
        let mut gone = false;
        if self.waiting[slot].is_none() {
            let received = match timeout {
                None => self.done.try_recv().map_err(|e| e == TryRecvError::Disconnected),
                Some(time) => self
                    .done
                    .recv_timeout(time)
                    .map_err(|e| e == RecvTimeoutError::Disconnected),
            };
            match received {
                Ok(done) => self.store(done),
                Err(disconnected) => gone = disconnected,
            }
        }
        match self.waiting[slot].take() {
            Some(Done::Ready(found, buffer)) => {
                debug_assert_eq!(found, seq);
                self.ready -= 1;
                Taken::Ready(buffer)
            }
            Some(Done::End(_)) => Taken::End,
            Some(Done::Failed(_, _, error)) => Taken::Failed(error),
            None if gone => Taken::Gone,
            None => Taken::NotYet,
        }
    }

    /// Takes a failure that is older than `age`, whatever micro-step it belongs to, the earliest micro-step first.
    pub(crate) fn take_old_failure(&mut self, age: Duration) -> Option<Box<LoaderError>> {
        if self.failures == 0 {
            return None;
        }
        let slot = self
            .waiting
            .iter()
            .enumerate()
            .filter_map(|(slot, done)| match done {
                Some(Done::Failed(seq, when, _)) if when.elapsed() >= age => Some((*seq, slot)),
                _ => None,
            })
            .min()?
            .1;
        match self.waiting[slot].take() {
            Some(Done::Failed(_, _, error)) => Some(error),
            _ => None,
        }
    }
}
