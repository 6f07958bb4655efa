//! Sources: random access from a sample id to its tokens.

use std::fmt;
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

    /// Copies the first `out.len()` tokens of sample `id` into `out` and returns how many it wrote
    /// (fewer when the sample is shorter).
    ///
    /// # Errors
    /// Out-of-range ids, nulls, negative values or values that do not fit an i32, and I/O failures; each names
    /// file and row.
    fn read(&self, id: SampleId, out: &mut [i32]) -> Result<usize, SourceError>;

    /// Hints that these samples will be read soon (page-in ahead of a cold read). Does nothing by default.
    fn will_need(&self, _ids: &[SampleId]) {}

    /// The file that holds sample `id`, for error messages.
    fn file_of(&self, id: SampleId) -> Option<PathBuf>;

    /// Files that make up the dataset, in order.
    fn files(&self) -> Vec<PathBuf>;
}

/// Why a source cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A sample id past the end.
    #[error("sample {id} is out of range: the dataset has {num_samples} samples")]
    OutOfRange {
        /// The id asked for.
        id: SampleId,
        /// What the dataset holds.
        num_samples: u64,
    },
}
