//! Takes decoded rows and writes them as an Arrow stream of `list<item: int32>`, as `datasets` would.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, ListArray, RecordBatch};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};

use crate::source::SourceError;
use crate::source::int_tokens::{IntType, copy_tokens, first_bad};

/// As `datasets` writes batches.
const BATCH_ROWS: usize = 1000;
/// A batch is closed early at 4 MiB.
const BATCH_TOKENS: usize = 1 << 20;

/// Takes decoded rows and writes them as an Arrow stream of `list<item: int32>`.
pub(crate) struct RowSink<'a> {
    source: &'a Path,
    target: PathBuf,
    column: &'a str,
    /// Row of the dataset that comes next.
    row: u64,
    first_row: u64,
    schema: Arc<Schema>,
    writer: StreamWriter<BufWriter<File>>,
    offsets: Vec<i32>,
    tokens: Vec<i32>,
    report: &'a (dyn Fn(u64) + Sync),
}

impl<'a> RowSink<'a> {
    pub(super) fn new(
        source: &'a Path,
        target: &Path,
        column: &'a str,
        first_row: u64,
        report: &'a (dyn Fn(u64) + Sync),
    ) -> Result<Self, SourceError> {
        let schema = Arc::new(Schema::new(vec![Field::new(
            column,
            DataType::List(item_field()),
            true,
        )]));
        let file = File::create(target).map_err(|e| SourceError::io(target, "create", e))?;
        let writer = StreamWriter::try_new(BufWriter::with_capacity(1 << 20, file), &schema)
            .map_err(|e| write_error(target, &e))?;
        Ok(Self {
            source,
            target: target.to_owned(),
            column,
            row: first_row,
            first_row,
            schema,
            writer,
            offsets: vec![0],
            tokens: Vec::new(),
            report,
        })
    }

    /// The column to decode.
    pub(crate) fn column(&self) -> &str {
        self.column
    }

    /// Adds a row of `len` values of type `int`.
    ///
    /// # Errors
    /// [`SourceError::BadToken`] for values that are no token ids, [`SourceError::Io`].
    ///
    /// # Safety
    /// `from` must be valid for reads of `len` values.
    pub(crate) unsafe fn push(
        &mut self,
        int: IntType,
        from: *const u8,
        len: usize,
    ) -> Result<(), SourceError> {
        let start = self.tokens.len();
        self.tokens.resize(start + len, 0);
        let max = i32::MAX as u32;
        // SAFETY: the caller's promise; `tokens` is ours.
        if !unsafe { copy_tokens(int, from, &mut self.tokens[start..], max) } {
            // SAFETY: as above.
            let (position, value) = unsafe { first_bad(int, from, len, max) }.unwrap_or((0, 0));
            return Err(SourceError::BadToken {
                path: self.source.to_owned(),
                row: self.row,
                column: self.column.to_owned(),
                position,
                value,
                max,
            });
        }
        let end = i32::try_from(self.tokens.len()).map_err(|_| {
            SourceError::corrupt(self.source, format!("row {} has more than 2^31 tokens", self.row))
        })?;
        self.offsets.push(end);
        self.row += 1;
        if self.offsets.len() > BATCH_ROWS || self.tokens.len() >= BATCH_TOKENS {
            self.flush()?;
        }
        Ok(())
    }

    /// An error about a null in the row that comes next.
    pub(crate) fn null(&self, what: String) -> SourceError {
        SourceError::Null {
            path: self.source.to_owned(),
            row: self.row,
            column: self.column.to_owned(),
            what,
        }
    }

    fn flush(&mut self) -> Result<(), SourceError> {
        let rows = self.offsets.len() - 1;
        if rows == 0 {
            return Ok(());
        }
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        let tokens = std::mem::take(&mut self.tokens);
        let list = ListArray::try_new(
            item_field(),
            OffsetBuffer::new(ScalarBuffer::from(offsets)),
            Arc::new(Int32Array::new(ScalarBuffer::from(tokens), None)),
            None,
        )
        .and_then(|list| RecordBatch::try_new(self.schema.clone(), vec![Arc::new(list) as ArrayRef]));
        let batch = list.map_err(|e| write_error(&self.target, &e))?;
        self.writer
            .write(&batch)
            .map_err(|e| write_error(&self.target, &e))?;
        (self.report)(rows as u64);
        Ok(())
    }

    /// Closes the file and returns its rows.
    pub(super) fn finish(mut self) -> Result<u64, SourceError> {
        self.flush()?;
        self.writer.finish().map_err(|e| write_error(&self.target, &e))?;
        let file = self
            .writer
            .into_inner()
            .map_err(|e| write_error(&self.target, &e))?
            .into_inner()
            .map_err(|e| SourceError::io(&self.target, "write", e.into_error()))?;
        file.sync_all()
            .map_err(|e| SourceError::io(&self.target, "sync", e))?;
        Ok(self.row - self.first_row)
    }
}

fn item_field() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Int32, true))
}

fn write_error(path: &Path, error: &arrow_schema::ArrowError) -> SourceError {
    SourceError::io(path, "write", std::io::Error::other(error.to_string()))
}
