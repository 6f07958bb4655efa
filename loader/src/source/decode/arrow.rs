//! Decodes the token column of Arrow IPC files whose record batches are compressed (Feather files usually
//! are).
//!
//! Buffers were bounded by the walk over the file; the length each claims to have uncompressed is checked
//! against what the batch's row and value counts ask for before anything of that size is allocated.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Plan;
use super::sink::RowSink;
use crate::source::SourceError;
use crate::source::int_tokens::IntType;
use crate::source::ipc::{ColumnKind, Columns, FileLayout, ListKind, RawBatch, RawBuffer, read_layout};
use crate::source::table::{Shard, open_file};

/// Writers pad buffers; nothing pads by more than this.
const MAX_PADDING: u64 = 512;

/// Counts rows. The column was checked when the files were opened and found to be compressed.
pub(super) fn plan(paths: &[PathBuf], column: &str) -> Result<Plan, SourceError> {
    let choose = |_: &Path, columns: &Columns| -> Result<Option<usize>, SourceError> {
        columns.find(column).map_err(SourceError::NotFound)
    };
    let mut plan = Plan {
        token_type: String::new(),
        rows: Vec::with_capacity(paths.len()),
    };
    for path in paths {
        let opened = open_file(
            &Shard {
                path: path.clone(),
                expected_rows: None,
            },
            &choose,
        )?;
        plan.rows.push(opened.layout.rows);
        if let Some(column) = opened
            .layout
            .column
            .and_then(|i| opened.layout.columns.list.get(i))
        {
            plan.token_type.clone_from(&column.type_name);
        }
    }
    Ok(plan)
}

/// Feeds every row of the column to the sink.
pub(super) fn decode(path: &Path, sink: &mut RowSink<'_>) -> Result<(), SourceError> {
    let file = File::open(path).map_err(|e| SourceError::io(path, "open", e))?;
    let column = sink.column().to_owned();
    let choose = |_: &Path, columns: &Columns| -> Result<Option<usize>, SourceError> {
        columns.find(&column).map_err(SourceError::NotFound)
    };
    let layout = read_layout(path, &file, None, &choose)?;
    let kind = layout
        .column
        .and_then(|i| layout.columns.list.get(i))
        .map(|c| c.kind);
    let Some(ColumnKind::Tokens(token)) = kind else {
        return Err(SourceError::corrupt(
            path,
            format!("column \"{column}\" is no list of integers"),
        ));
    };
    for (i, batch) in layout.raw.iter().enumerate() {
        let reader = Reader {
            path,
            file: &file,
            codec: batch.codec,
            place: format!("record batch {i}"),
        };
        reader.batch(batch, token.list, token.int, &layout, sink)?;
    }
    Ok(())
}

struct Reader<'a> {
    path: &'a Path,
    file: &'a File,
    /// `None` for a batch that is not compressed among others that are.
    codec: Option<&'static str>,
    place: String,
}

impl Reader<'_> {
    fn bad(&self, problem: &str) -> SourceError {
        SourceError::corrupt(self.path, format!("{}: {problem}", self.place))
    }

    fn batch(
        &self,
        batch: &RawBatch,
        list: ListKind,
        int: IntType,
        layout: &FileLayout,
        sink: &mut RowSink<'_>,
    ) -> Result<(), SourceError> {
        if batch.rows == 0 {
            return Ok(());
        }
        if batch.row_nulls != 0 || batch.value_nulls != 0 {
            // Naming the row would need the bitmaps; naming the batch is enough to find it with pyarrow.
            return Err(sink.null(format!(
                "{} from this row on has {} null rows and {} null values",
                self.place, batch.row_nulls, batch.value_nulls
            )));
        }
        let width = int.width();
        let item = match list {
            ListKind::FixedSizeList(_) => 2,
            ListKind::List | ListKind::LargeList => 3,
            ListKind::ListView | ListKind::LargeListView => 4,
        };
        let values = self.buffer(batch, item, batch.values, width)?;
        let wide = matches!(list, ListKind::LargeList | ListKind::LargeListView);
        let offset_width = if wide { 8 } else { 4 };
        let (offsets, sizes) = match list {
            ListKind::FixedSizeList(_) => (Vec::new(), Vec::new()),
            ListKind::List | ListKind::LargeList => {
                (self.buffer(batch, 1, batch.rows + 1, offset_width)?, Vec::new())
            }
            ListKind::ListView | ListKind::LargeListView => (
                self.buffer(batch, 1, batch.rows, offset_width)?,
                self.buffer(batch, 2, batch.rows, offset_width)?,
            ),
        };
        let at = |bytes: &[u8], i: u64| -> u64 {
            let from = (i * offset_width) as usize;
            bytes
                .get(from..from + offset_width as usize)
                .map_or(u64::MAX, |b| {
                    b.iter().rev().fold(0u64, |sum, &x| sum << 8 | u64::from(x))
                })
        };
        for row in 0..batch.rows {
            let (from, len) = match list {
                ListKind::FixedSizeList(n) => (row * u64::from(n), u64::from(n)),
                ListKind::List | ListKind::LargeList => {
                    let from = at(&offsets, row);
                    (from, at(&offsets, row + 1).wrapping_sub(from))
                }
                ListKind::ListView | ListKind::LargeListView => (at(&offsets, row), at(&sizes, row)),
            };
            if from.checked_add(len).is_none_or(|end| end > batch.values) {
                let name = layout
                    .column
                    .and_then(|i| layout.columns.list.get(i))
                    .map_or("", |c| c.name.as_str());
                return Err(self.bad(&format!(
                    "column \"{name}\": row {row} of the batch lies outside its {} values",
                    batch.values
                )));
            }
            // SAFETY: `from + len <= values`, and `values` holds that many values of this width.
            unsafe { sink.push(int, values.as_ptr().add((from * width) as usize), len as usize)? };
        }
        Ok(())
    }

    /// The column's buffer `i`, uncompressed, of at least `count * width` bytes.
    fn buffer(&self, batch: &RawBatch, i: usize, count: u64, width: u64) -> Result<Vec<u8>, SourceError> {
        let need = count
            .checked_mul(width)
            .ok_or_else(|| self.bad("a buffer length overflows"))?;
        let RawBuffer { at, len } = *batch
            .buffers
            .get(i)
            .ok_or_else(|| self.bad("a buffer is missing"))?;
        if need == 0 {
            return Ok(Vec::new());
        }
        let mut stored = vec![0u8; usize::try_from(len).map_err(|_| self.bad("a buffer is too long"))?];
        self.file
            .read_exact_at(&mut stored, at)
            .map_err(|e| SourceError::io(self.path, format!("read {len} bytes at byte {at}"), e))?;
        let Some(codec) = self.codec else {
            return self.enough(stored, need);
        };
        let Some((prefix, packed)) = stored.split_first_chunk::<8>() else {
            return Err(self.bad("a compressed buffer is shorter than its length prefix"));
        };
        let claimed = i64::from_le_bytes(*prefix);
        if claimed == -1 {
            return self.enough(packed.to_vec(), need);
        }
        let claimed = u64::try_from(claimed).unwrap_or(u64::MAX);
        if claimed < need || claimed - need > MAX_PADDING {
            return Err(self.bad(&format!(
                "a compressed buffer claims {claimed} bytes, its {count} entries of {width} bytes need {need}"
            )));
        }
        let mut out = Vec::new();
        let unpacked = match codec {
            "lz4" => lz4_flex::frame::FrameDecoder::new(packed)
                .take(claimed)
                .read_to_end(&mut out),
            "zstd" => {
                zstd::stream::read::Decoder::new(packed).and_then(|d| d.take(claimed).read_to_end(&mut out))
            }
            other => return Err(self.bad(&format!("is compressed with {other}, which is not supported"))),
        };
        unpacked.map_err(|e| self.bad(&format!("a buffer cannot be decompressed ({codec}): {e}")))?;
        self.enough(out, need)
    }

    fn enough(&self, bytes: Vec<u8>, need: u64) -> Result<Vec<u8>, SourceError> {
        if bytes.len() as u64 >= need {
            return Ok(bytes);
        }
        Err(self.bad(&format!(
            "a buffer has {} bytes uncompressed, {need} are needed",
            bytes.len()
        )))
    }
}
