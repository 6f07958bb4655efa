//! Why a loader cannot start or go on.

use std::fmt;
use std::path::PathBuf;

use ceteris_samplers::SampleId;

use super::buffer::AllocationError;
use super::state::StateError;
use crate::collate::CollateError;
use crate::source::SourceError;

/// Where in the run something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepAt {
    /// Epoch of the run.
    pub epoch: u64,
    /// Micro-step within the epoch.
    pub micro_step: u64,
    /// Micro-step since the start of the run.
    pub global_micro_step: u64,
}

impl fmt::Display for StepAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "micro-step {} of epoch {} (global micro-step {})",
            self.micro_step, self.epoch, self.global_micro_step
        )
    }
}

/// The sample a worker was busy with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleAt {
    /// Row of the stored table.
    pub sample: SampleId,
    /// Rank that consumes it.
    pub rank: u64,
    /// Row of the rank's micro-batch.
    pub slot: u64,
    /// File that holds it, where the source knows.
    pub file: Option<PathBuf>,
}

impl fmt::Display for SampleAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sample {} (rank {}, slot {})",
            self.sample, self.rank, self.slot
        )?;
        match &self.file {
            Some(file) => write!(f, " of {}", file.display()),
            None => Ok(()),
        }
    }
}

/// Why a loader cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum LoaderError {
    /// An option has a value that makes no sense.
    #[error("{option}: {reason}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// The dataset and the order were made for different sizes.
    #[error("the order permutes {order} samples but the dataset has {dataset}")]
    SizeMismatch {
        /// Samples the order permutes.
        order: u64,
        /// Samples the source holds.
        dataset: u64,
    },
    /// There is nothing to deliver.
    #[error(
        "there is no micro-step to deliver: {num_samples} samples over {world_size} ranks with micro-batches of \
         {micro_batch_size} are all dropped; with drop_last false they are kept as short micro-batches"
    )]
    EmptyEpoch {
        /// Samples of the dataset.
        num_samples: u64,
        /// Ranks.
        world_size: u64,
        /// Rows of a micro-batch.
        micro_batch_size: u64,
    },
    /// An epoch of the order cannot be built.
    #[error("epoch {epoch} cannot be built: {message}")]
    EpochFailed {
        /// The epoch.
        epoch: u64,
        /// Why.
        message: String,
    },
    /// The thread that builds an epoch panicked.
    #[error("building epoch {epoch} panicked: {message}")]
    EpochPanic {
        /// The epoch.
        epoch: u64,
        /// The panic's message.
        message: String,
    },
    /// Valid rows of a rank are not the first ones of its micro-batch: a bug of the order.
    #[error("{at}: rank {rank} has a sample in slot {slot} after an empty slot")]
    Gap {
        /// Where.
        at: StepAt,
        /// The rank.
        rank: u64,
        /// The slot.
        slot: u64,
    },
    /// What the order looks samples up in was damaged since it was opened.
    #[error("{at}: {why}")]
    Damaged {
        /// Where.
        at: StepAt,
        /// File, entry and what to do.
        why: String,
    },
    /// A sample cannot be read.
    #[error("{at}: {sample}: {source}")]
    Read {
        /// Where in the run.
        at: StepAt,
        /// Which sample.
        sample: Box<SampleAt>,
        /// Why.
        source: Box<SourceError>,
    },
    /// A file of the dataset changed during the run: batches since the last check may hold anything.
    #[error("the dataset changed during the run: {0}")]
    Changed(#[source] Box<SourceError>),
    /// A worker panicked.
    #[error("{at}: worker {worker} panicked{}: {message}", .sample.as_ref().map_or(String::new(), |s| format!(" at {s}")))]
    WorkerPanic {
        /// Where in the run.
        at: StepAt,
        /// Which worker.
        worker: usize,
        /// The sample it was busy with.
        sample: Option<Box<SampleAt>>,
        /// The panic's message.
        message: String,
    },
    /// Workers are gone without a message (a bug of the loader).
    #[error("all workers ended before micro-step {global_micro_step} of the run was delivered")]
    WorkersGone {
        /// The micro-step waited for.
        global_micro_step: u64,
    },
    /// The consumer holds every buffer, so nothing can be assembled.
    #[error(
        "all {buffers} batch buffers are held by the consumer: drop a batch before asking for the next, or raise prefetch"
    )]
    AllBuffersHeld {
        /// Buffers of this loader.
        buffers: usize,
    },
    /// SIGINT, SIGTERM or a request to stop.
    #[error("stopped by {} before global micro-step {global_micro_step}", signal_name(*.signal))]
    Interrupted {
        /// The signal's number; 0 when the program itself asked.
        signal: i32,
        /// The micro-step that would have come next.
        global_micro_step: u64,
    },
    /// The loader failed before; it delivers nothing more.
    #[error("the loader has failed before: {0}")]
    AlreadyFailed(String),
    /// The collator's options.
    #[error(transparent)]
    Collator(#[from] CollateError),
    /// Memory.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The state to resume from does not fit.
    #[error(transparent)]
    State(#[from] StateError),
    /// A thread cannot be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Name of the thread.
        name: String,
        /// Why.
        source: std::io::Error,
    },
}

fn signal_name(signal: i32) -> String {
    match signal {
        0 => "request".to_owned(),
        libc::SIGINT => "SIGINT".to_owned(),
        libc::SIGTERM => "SIGTERM".to_owned(),
        other => format!("signal {other}"),
    }
}

/// Message of a caught panic.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}
