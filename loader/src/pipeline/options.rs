//! Options of a loader, and how it tells the user something.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::buffer::{BufferAllocator, PlainMemory};
use super::documents::DocumentRule;
use super::elastic::ElasticReport;
use super::error::LoaderError;
use super::signals::StopSignal;
use crate::collate::{Collator, Outputs, TokensOnly};

/// Which ranks' batches one loader assembles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ranks {
    /// Every rank in turn: one process plays the whole world.
    #[default]
    All,
    /// These ranks, in this order.
    Some(Vec<u64>),
}

impl Ranks {
    /// The list of ranks for a world.
    ///
    /// # Errors
    /// [`LoaderError::Option`] for an empty list, a rank outside the world, or one named twice.
    pub fn resolve(&self, world_size: u64) -> Result<Vec<u64>, LoaderError> {
        let fail = |reason: String| LoaderError::Option {
            option: "ranks",
            reason,
        };
        match self {
            Ranks::All => Ok((0..world_size).collect()),
            Ranks::Some(ranks) if ranks.is_empty() => Err(fail("no rank was asked for".to_owned())),
            Ranks::Some(ranks) => {
                for (i, &rank) in ranks.iter().enumerate() {
                    if rank >= world_size {
                        return Err(fail(format!(
                            "rank {rank} is out of range: world_size {world_size} has ranks 0 to {}",
                            world_size.saturating_sub(1)
                        )));
                    }
                    if ranks[..i].contains(&rank) {
                        return Err(fail(format!("rank {rank} is named twice")));
                    }
                }
                Ok(ranks.clone())
            }
        }
    }
}

/// When workers ask the kernel for the pages of coming micro-steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageIn {
    /// While reads reach the disk; a warm file costs nothing.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Something the user should know; does not stop the run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The consumer has waited for some time.
    Stall {
        /// Seconds waited so far.
        seconds: u64,
        /// Micro-step waited for, since the start of the run.
        global_micro_step: u64,
        /// What the worker in charge is doing.
        doing: String,
    },
    /// What the order has to say about its options, once a run.
    Order(String),
    /// A run goes on under another layout.
    Elastic(Box<ElasticReport>),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Stall {
                seconds,
                global_micro_step,
                doing,
            } => {
                write!(
                    f,
                    "stall: waited {seconds} s for global micro-step {global_micro_step}: {doing}"
                )
            }
            Notice::Order(text) => f.write_str(text),
            Notice::Elastic(report) => report.fmt(f),
        }
    }
}

/// Where notices go.
#[derive(Clone)]
pub struct NoticeSink(Arc<dyn Fn(&Notice) + Send + Sync>);

impl NoticeSink {
    /// Calls `f` for each notice, from whatever thread has one.
    pub fn new(f: impl Fn(&Notice) + Send + Sync + 'static) -> NoticeSink {
        NoticeSink(Arc::new(f))
    }

    pub(crate) fn send(&self, notice: &Notice) {
        (self.0)(notice);
    }
}

impl Default for NoticeSink {
    /// One line on stderr each.
    fn default() -> NoticeSink {
        NoticeSink::new(|notice| eprintln!("loader: {notice}"))
    }
}

impl fmt::Debug for NoticeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoticeSink")
    }
}

/// How a loader runs. None of these but `start`, `epochs`, `ranks` and what shapes a row changes what is delivered.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// Threads that assemble micro-steps; 0 assembles in the consumer's thread.
    pub workers: usize,
    /// Batches assembled ahead of the consumer, at least 1. A loader holds `prefetch + 1` buffers.
    pub prefetch: usize,
    /// Ranks of each batch.
    pub ranks: Ranks,
    /// Tokens of a row, T.
    pub seq_length: usize,
    /// Fills rows behind a short sample and rows past the end of an epoch.
    pub pad_token: i32,
    /// Labels, masks, positions.
    pub collator: Arc<dyn Collator>,
    /// Which of the collator's arrays to fill; all by default.
    pub outputs: Outputs,
    /// Document boundaries (`cu_seqlens`, `position_ids`), if asked for.
    pub documents: Option<DocumentRule>,
    /// Have the workers compute the fingerprint of each row.
    pub fingerprints: bool,
    /// Also give each row's index after the order's dataset shuffle, where that costs another 4 bytes a sample of
    /// memory for each epoch alive.
    pub positions: bool,
    /// Epoch and micro-step within it that come first.
    pub start: (u64, u64),
    /// Epochs of the run, counted from epoch 0; `None` runs for ever.
    pub epochs: Option<u64>,
    /// Resume also under a layout with another global batch; the report says what repeats and what is skipped.
    pub allow_global_batch_change: bool,
    /// Micro-steps this loader delivers at most.
    pub max_micro_steps: Option<u64>,
    /// Page-in ahead of reads.
    pub page_in: PageIn,
    /// Micro-steps of its own that a worker asks pages for ahead.
    pub page_in_micro_steps: u64,
    /// Memory of the batch buffers.
    pub allocator: Arc<dyn BufferAllocator>,
    /// A stall line is printed each time this much time passes while the consumer waits.
    pub stall_period: Duration,
    /// Ends the run when set.
    pub stop: Option<StopSignal>,
    /// Where notices go; stderr by default.
    pub notices: NoticeSink,
    /// Content fingerprint of the dataset, for states. Empty: states are matched by size and files only.
    pub dataset_fingerprint: String,
}

/// Workers of a loader when nothing else is asked for.
pub const DEFAULT_WORKERS: usize = 8;
/// Batches ahead when nothing else is asked for.
pub const DEFAULT_PREFETCH: usize = 16;

impl LoaderOptions {
    /// Defaults for rows of `seq_length` tokens.
    pub fn new(seq_length: usize) -> LoaderOptions {
        LoaderOptions {
            workers: DEFAULT_WORKERS,
            prefetch: DEFAULT_PREFETCH,
            ranks: Ranks::All,
            seq_length,
            pad_token: 0,
            collator: Arc::new(TokensOnly),
            outputs: Outputs::ALL,
            documents: None,
            fingerprints: false,
            positions: false,
            start: (0, 0),
            epochs: None,
            allow_global_batch_change: false,
            max_micro_steps: None,
            page_in: PageIn::Auto,
            page_in_micro_steps: 2,
            allocator: Arc::new(PlainMemory),
            stall_period: Duration::from_secs(10),
            stop: None,
            notices: NoticeSink::default(),
            dataset_fingerprint: String::new(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LoaderError> {
        let fail = |option, reason: &str| {
            Err(LoaderError::Option {
                option,
                reason: reason.to_owned(),
            })
        };
        if self.seq_length == 0 {
            return fail("seq_length", "a row needs at least one token");
        }
        if self.prefetch == 0 {
            return fail("prefetch", "at least one batch must be assembled ahead");
        }
        if self.prefetch > 1 << 16 || self.workers > 1 << 12 {
            return fail(
                "workers",
                "at most 4096 workers and a prefetch of 65536 batches are supported",
            );
        }
        if self.stall_period.is_zero() {
            return fail("stall_period", "must be above zero");
        }
        Ok(())
    }
}
