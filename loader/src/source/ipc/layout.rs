//! What reading the structure of an Arrow IPC file yields.

use std::path::Path;

use super::columns::Columns;
use crate::source::SourceError;

/// Which of the two IPC formats a file is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IpcFormat {
    Stream,
    File,
}

/// Where the rows of a record batch lie. Positions count values, file offsets count bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Row `r` is the values `first + r * len ..` of length `len`.
    Uniform { first: u64, len: u64 },
    /// `rows + 1` little-endian i32 from byte `at`.
    Offsets32 { at: u64 },
    /// `rows + 1` little-endian i64 from byte `at`.
    Offsets64 { at: u64 },
    /// `rows` offsets and `rows` sizes, i32.
    Views32 { offsets_at: u64, sizes_at: u64 },
    /// `rows` offsets and `rows` sizes, i64.
    Views64 { offsets_at: u64, sizes_at: u64 },
}

/// The wanted column in one record batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchLayout {
    pub(crate) rows: u64,
    /// File offset of the first value.
    pub(crate) values_at: u64,
    /// Values there are.
    pub(crate) values: u64,
    pub(crate) row_places: Rows,
}

/// Row lengths of a column, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) total: u64,
}

impl Lengths {
    pub(crate) const NONE: Self = Self {
        min: u64::MAX,
        max: 0,
        total: 0,
    };

    pub(super) fn add(&mut self, other: Self) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.total = self.total.saturating_add(other.total);
    }

    pub(crate) fn merged(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::NONE, |mut sum, one| {
            sum.add(one);
            sum
        })
    }
}

/// The first null of the wanted column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstNull {
    /// Row of this file.
    pub(crate) row: u64,
    /// "the row is null", or where in the row the null is.
    pub(crate) what: String,
}

/// A buffer in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawBuffer {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// The wanted column of a batch in a file with compressed bodies: counts and buffers, unchecked beyond their
/// bounds.
#[derive(Debug, Clone)]
pub(crate) struct RawBatch {
    pub(crate) codec: Option<&'static str>,
    pub(crate) rows: u64,
    pub(crate) values: u64,
    pub(crate) row_nulls: i64,
    pub(crate) value_nulls: i64,
    /// The column's buffers, its own first, then its items'.
    pub(crate) buffers: Vec<RawBuffer>,
}

/// Structure of one file.
#[derive(Debug, Clone)]
pub(crate) struct FileLayout {
    pub(crate) format: IpcFormat,
    pub(crate) columns: Columns,
    /// The wanted column, when one was asked for.
    pub(crate) column: Option<usize>,
    /// The wanted column's batches (empty without one, or when bodies are compressed).
    pub(crate) batches: Vec<BatchLayout>,
    pub(crate) num_batches: u64,
    pub(crate) rows: u64,
    pub(crate) lengths: Lengths,
    pub(crate) first_null: Option<FirstNull>,
    /// Codec of compressed bodies: such a file cannot be mapped.
    pub(crate) compression: Option<&'static str>,
    /// Batches as stored; kept only for files with compressed bodies.
    pub(crate) raw: Vec<RawBatch>,
}

/// Chooses the column to locate once the columns are known.
pub(crate) type Choose<'a> = &'a (dyn Fn(&Path, &Columns) -> Result<Option<usize>, SourceError> + Sync);
