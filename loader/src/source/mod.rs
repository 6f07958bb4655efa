//! Sources: random access from a sample id to its tokens.

pub mod concat;
pub(crate) mod contents;
mod decode;
mod dirs;
pub mod fingerprint;
mod group;
pub mod hf;
mod int_tokens;
mod ipc;
pub(crate) mod mapped;
pub mod megatron;
pub mod megatron_gpt;
pub mod megatron_idx;
pub mod megatron_writer;
pub mod options;
mod sigbus;
mod table;

pub use concat::ConcatSource;
pub use contents::ColumnInfo;
pub use decode::cache_folder;
pub use dirs::DatasetKind;
pub use fingerprint::{DatasetFingerprint, FileFingerprint, FingerprintMode};
pub use group::{AHEAD, GROUP};
pub use hf::{HfSource, RowLengths, TokenScan};
pub use options::{OnRagged, SourceOptions};

use std::fmt;
use std::io;
use std::path::PathBuf;

use ceteris_samplers::SampleId;

/// Random access to the tokens of a dataset. Implementations read from a memory map and hold no cursor.
pub trait Source: Send + Sync + fmt::Debug {
    /// Samples in the dataset.
    fn num_samples(&self) -> u64;

    /// Tokens of sample `id` as stored.
    ///
    /// # Errors
    /// [`SourceError::OutOfRange`] when `id >= num_samples()`.
    fn sample_len(&self, id: SampleId) -> Result<usize, SourceError>;

    /// Copies the first `out.len()` tokens of sample `id` into `out` and returns how many it wrote (fewer
    /// when the sample is shorter; what lies behind them in `out` is left as it was).
    ///
    /// # Errors
    /// Out-of-range ids, nulls, negative values or values that do not fit an i32, and I/O failures; each
    /// names file and row.
    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError>;

    /// Copies the first `out[i].len()` tokens of each sample `ids[i]`, all rows of one length, side by side: faster than one
    /// after the other where samples lie anywhere in memory (see `group`). False where that cannot be done: the source
    /// has no such way, as by default, or a sample is shorter, damaged or out of range. Then `out` holds anything, and
    /// [`Source::read`] says what each sample is.
    fn read_group(&self, _ids: [SampleId; GROUP], _out: [&mut [i32]; GROUP]) -> bool {
        false
    }

    /// Hints that this sample is read in a moment, from memory: address translations ahead of a warm read. Never reads
    /// from disk. Does nothing by default.
    fn read_soon(&self, _id: SampleId) {}

    /// Hints that these samples will be read soon (page-in ahead of a cold read). Does nothing by default.
    fn will_need(&self, _ids: &[SampleId]) {}

    /// The file that holds sample `id`, for error messages.
    fn file_of(&self, id: SampleId) -> Option<PathBuf>;

    /// Files that make up the dataset, in order.
    fn files(&self) -> Vec<PathBuf>;

    /// Row of the stored table that sample `id` is. They differ when an indices table is applied or when
    /// ragged rows are dropped.
    fn stored_row(&self, id: SampleId) -> u64 {
        id
    }

    /// Names of the datasets this source is made of, for counts of what was consumed; empty for a single one.
    fn part_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Index into [`Source::part_names`] of the dataset that sample `id` comes from.
    fn part_of(&self, _id: SampleId) -> usize {
        0
    }

    /// Appends the offsets within sample `id` at which documents start, in rising order, where the source
    /// knows them; offset 0 may be left out.
    ///
    /// # Errors
    /// As [`Source::read`].
    fn document_starts(&self, _id: SampleId, _starts: &mut Vec<usize>) -> Result<(), SourceError> {
        Ok(())
    }

    /// Appends the documents, or parts of documents, that sample `id` is made of, in the sequence they stand in it.
    /// Returns false where the source does not know documents.
    ///
    /// # Errors
    /// As [`Source::read`].
    fn document_spans(&self, _id: SampleId, _spans: &mut Vec<DocumentSpan>) -> Result<bool, SourceError> {
        Ok(false)
    }

    /// Checks that no file changed its length or was rewritten since it was opened (one `fstat` per file).
    ///
    /// A page that vanishes under a memory map is an error at the read that touches it, but the rest of the
    /// page in which a shortened file now ends reads as zeros: a consumer calls this from time to time (the
    /// pipeline: at least once a second, and before it states a fingerprint or saves a state).
    ///
    /// # Errors
    /// [`SourceError::Changed`] naming the first changed file.
    fn check_unchanged(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// A document's part in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DocumentSpan {
    /// Which of [`Source::part_names`], 0 where there is one dataset.
    pub part: usize,
    /// The document.
    pub document: u64,
    /// The stored sequence of it (datasets whose documents are one sequence each number both alike).
    pub sequence: u64,
    /// First token of the sequence that the sample has.
    pub start: u64,
    /// First token of the sequence behind it.
    pub end: u64,
    /// Tokens of the sequence.
    pub sequence_len: u64,
    /// Where in the sample it starts.
    pub at: u64,
}

/// Why a source cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A sample id past the end.
    #[error("sample {id} is out of range: the dataset has {num_samples} samples")]
    OutOfRange {
        /// The id asked for.
        id: SampleId,
        /// What the dataset holds.
        num_samples: u64,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried, as a verb phrase ("open", "read 8 bytes at 120").
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its format asks for: cut off, bit-flipped, or another format.
    #[error("{}: {problem}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it and what was expected and found.
        problem: String,
    },
    /// A file was shortened, rewritten or became unreadable after it was opened.
    #[error("{}: the file changed while it was in use: {problem}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What is different.
        problem: String,
    },
    /// A stored value is not a token id.
    #[error(
        "{}: row {row}, column \"{column}\": the value at position {position} is {value}; token ids here go from 0 to {max}",
        path.display()
    )]
    BadToken {
        /// The file.
        path: PathBuf,
        /// Row of the stored table.
        row: u64,
        /// The column, or the part of the file, it was read from.
        column: String,
        /// Index within the row.
        position: usize,
        /// What is stored.
        value: i128,
        /// Largest id allowed: the vocabulary's, or `i32::MAX`.
        max: u32,
    },
    /// A row or a value of a row is null.
    #[error("{}: row {row}, column \"{column}\": {what}", path.display())]
    Null {
        /// The file.
        path: PathBuf,
        /// Row of the stored table.
        row: u64,
        /// The token column.
        column: String,
        /// "the row is null" or the position of the null value.
        what: String,
    },
    /// Rows are not as long as the options ask for.
    #[error("{0}")]
    RowLength(String),
    /// The path holds no dataset of the kind asked for, or not the split, column or shard asked for.
    #[error("{0}")]
    NotFound(String),
    /// The options contradict each other or the dataset.
    #[error("{0}")]
    Options(String),
}

impl SourceError {
    /// An [`SourceError::Io`] for `path`.
    pub fn io(path: impl Into<PathBuf>, action: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            path: path.into(),
            action: action.into(),
            source,
        }
    }

    /// A [`SourceError::Corrupt`] for `path`.
    pub fn corrupt(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.into(),
            problem: problem.into(),
        }
    }
}
