//! Data preparation: text to tokens, and token datasets from one form into the other.

pub mod convert;
pub mod encoder;
mod journal;
pub mod save_to_disk;
mod spool;
pub mod texts;
pub mod tokenize;

use std::io;
use std::path::{Path, PathBuf};

use crate::source::SourceError;
use crate::source::megatron_writer::WriteError;

/// Why data cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A document that cannot be used, or a file that does not hold documents.
    #[error("{}, {place}: {problem}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Line or row.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// The tokenizer cannot be loaded or cannot do what is asked.
    #[error("{}: {problem}", path.display())]
    Tokenizer {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Options that contradict each other, the input, or an unfinished job.
    #[error("{0}")]
    Options(String),
    /// What was written does not read back the same.
    #[error("verification failed: {0}")]
    Verification(String),
    /// Stopped on request; the work done so far is kept.
    #[error("stopped; the same command goes on from here")]
    Stopped,
    /// Stopped on request, in work that is not gone on with.
    #[error("stopped; {0}")]
    Cancelled(&'static str),
    /// A token dataset cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A token dataset cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl PrepareError {
    fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        PrepareError::Io {
            path: path.to_owned(),
            action,
            source,
        }
    }
}

/// Told what is being done, how much of it is done, and how much there is (0: not known). `false` stops the work.
pub type Progress<'a> = &'a (dyn Fn(&'static str, u64, u64) -> bool + Sync);
