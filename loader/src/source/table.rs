//! One integer-list column over many mapped Arrow files: random access from row to tokens.
//!
//! Opening reads headers and offsets only (see `ipc`), several files at a time. Memory: about 60 bytes
//! per record batch and nothing per row. A row costs one look-up (constant for batches of like size,
//! logarithmic at worst), then one copy out of the map; rows of one length need no offset read. Nothing is
//! allocated.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::SourceError;
use super::group::{GROUP, copy_group};
use super::int_tokens::{IntType, copy_tokens, first_bad};
use super::ipc::{
    BatchLayout, Choose, Column, ColumnKind, FileLayout, FirstNull, Lengths, Rows, read_layout,
};
use super::mapped::MappedFile;

/// Files are opened by this many threads: on a cold disk opening waits for reads, not for the processor.
const OPEN_THREADS: usize = 8;

/// A file to open, and what its directory says about its rows.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    /// Rows, and the file that says so.
    pub(crate) expected_rows: Option<(u64, String)>,
}

/// A file whose structure was read and checked.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) map: MappedFile,
    pub(crate) layout: FileLayout,
}

/// Opens one file and checks its row count.
///
/// # Errors
/// As [`read_layout`]; also when the rows are not those expected.
pub(crate) fn open_file(shard: &Shard, choose: Choose<'_>) -> Result<OpenFile, SourceError> {
    let path = shard.path.as_path();
    let file = File::open(path).map_err(|e| SourceError::io(path, "open", e))?;
    let expected = shard.expected_rows.as_ref().map(|(n, who)| (*n, who.as_str()));
    let layout = read_layout(path, &file, expected, choose)?;
    if let Some((rows, who)) = expected
        && layout.rows != rows
    {
        return Err(SourceError::corrupt(
            path,
            format!(
                "holds {} rows in {} record batches; {who} says {rows} rows",
                layout.rows, layout.num_batches
            ),
        ));
    }
    let map = MappedFile::new(path, &file)?;
    Ok(OpenFile { map, layout })
}

/// Opens all files, in parallel; the result and the error reported (that of the first bad file) do not depend
/// on it.
///
/// # Errors
/// As [`open_file`].
pub(crate) fn open_files(shards: &[Shard], choose: Choose<'_>) -> Result<Vec<OpenFile>, SourceError> {
    let slots: Vec<Mutex<Option<Result<OpenFile, SourceError>>>> =
        shards.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((shard, slot)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            shards.get(i).zip(slots.get(i))
        } {
            let opened = open_file(shard, choose);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        }
    };
    if shards.len() <= 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..OPEN_THREADS.min(shards.len()) {
                scope.spawn(work);
            }
        });
    }
    slots
        .into_iter()
        .filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

#[derive(Debug)]
struct Part {
    map: MappedFile,
    first_row: u64,
}

/// One record batch of the table.
#[derive(Debug, Clone, Copy)]
struct Batch {
    part: u32,
    layout: BatchLayout,
}

/// A row found in its file: values `first..first + len` of `batch`.
#[derive(Debug, Clone, Copy)]
struct Found {
    batch: Batch,
    first: u64,
    len: u64,
}

/// A column of integer lists (or of plain integers, as rows of length 1) over the concatenation of files.
#[derive(Debug)]
pub(crate) struct ArrowTable {
    parts: Vec<Part>,
    column: String,
    int: IntType,
    /// First row of each batch, then the number of rows.
    starts: Vec<u64>,
    batches: Vec<Batch>,
    /// `buckets[row >> shift]` is the batch that holds the bucket's first row.
    buckets: Vec<u32>,
    shift: u32,
    lengths: Lengths,
    num_batches: u64,
}

impl ArrowTable {
    /// Puts opened files behind each other.
    ///
    /// # Errors
    /// [`SourceError::Null`] for the first null, [`SourceError::Corrupt`] when files disagree about the
    /// column's type.
    pub(crate) fn new(files: Vec<OpenFile>) -> Result<Self, SourceError> {
        let kind_of = |layout: &FileLayout| -> Option<(Column, IntType)> {
            let column = layout.columns.list.get(layout.column?)?.clone();
            let int = match column.kind {
                ColumnKind::Tokens(t) => t.int,
                ColumnKind::Int(int) => int,
                ColumnKind::Other => return None,
            };
            Some((column, int))
        };
        let first = files
            .first()
            .and_then(|f| kind_of(&f.layout).map(|k| (f.map.path().to_owned(), k)));
        let Some((first_path, (column, int))) = first else {
            return Err(SourceError::NotFound(
                "there is no file with a token column to read".to_owned(),
            ));
        };
        let lengths = Lengths::merged(files.iter().map(|f| f.layout.lengths));
        let mut table = Self {
            parts: Vec::with_capacity(files.len()),
            column: column.name.clone(),
            int,
            starts: vec![0],
            batches: Vec::new(),
            buckets: Vec::new(),
            shift: 0,
            lengths,
            num_batches: files.iter().map(|f| f.layout.num_batches).sum(),
        };
        let mut rows = 0u64;
        for OpenFile { map, layout } in files {
            let first_row = rows;
            match kind_of(&layout) {
                Some((other, _)) if other.kind == column.kind => {}
                other => {
                    return Err(SourceError::corrupt(
                        map.path(),
                        format!(
                            "its column \"{}\" is {}, but {} in {}: the shards are not of one dataset",
                            column.name,
                            other.map_or("no integer column".to_owned(), |(c, _)| c.type_name),
                            column.type_name,
                            first_path.display()
                        ),
                    ));
                }
            }
            if let Some(FirstNull { row, what }) = layout.first_null {
                return Err(SourceError::Null {
                    path: map.path().to_owned(),
                    row: first_row + row,
                    column: column.name,
                    what,
                });
            }
            let part = u32::try_from(table.parts.len())
                .map_err(|_| SourceError::NotFound("more than 2^32 files make up the dataset".to_owned()))?;
            for layout in layout.batches {
                if layout.rows > 0 {
                    rows = rows
                        .checked_add(layout.rows)
                        .ok_or_else(|| SourceError::corrupt(map.path(), "the row count overflows"))?;
                    table.batches.push(Batch { part, layout });
                    table.starts.push(rows);
                }
            }
            table.parts.push(Part { map, first_row });
        }
        table.index();
        Ok(table)
    }

    /// Builds the bucket table: at most about two buckets per batch.
    fn index(&mut self) {
        let rows = self.num_rows();
        let target = (2 * self.batches.len() as u64).max(1);
        while (rows >> self.shift) > target {
            self.shift += 1;
        }
        let mut batch = 0usize;
        for bucket in 0..=(rows >> self.shift) {
            let row = bucket << self.shift;
            while batch + 1 < self.batches.len() && self.starts[batch + 1] <= row {
                batch += 1;
            }
            // Batches number fewer than 2^32: each takes up at least a header in a mapped file.
            self.buckets.push(batch as u32);
        }
    }

    pub(crate) fn num_rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn num_batches(&self) -> u64 {
        self.num_batches
    }

    /// Shortest, longest and summed row length; of no meaning without rows.
    pub(crate) fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// The batch that holds `row`, which must be below the number of rows.
    #[inline]
    fn batch_of(&self, row: u64) -> usize {
        let bucket = (row >> self.shift) as usize;
        let low = self.buckets[bucket] as usize;
        let high = self
            .buckets
            .get(bucket + 1)
            .map_or(self.batches.len(), |&b| b as usize + 1);
        // Usually one or two candidates.
        low + self.starts[low + 1..high.max(low + 1)].partition_point(|&start| start <= row)
    }

    #[inline]
    fn find(&self, row: u64) -> Result<Found, SourceError> {
        if row >= self.num_rows() {
            return Err(SourceError::OutOfRange {
                id: row,
                num_samples: self.num_rows(),
            });
        }
        let index = self.batch_of(row);
        let batch = self.batches[index];
        let at = row - self.starts[index];
        let map = &self.parts[batch.part as usize].map;
        let (first, len) = match batch.layout.row_places {
            Rows::Uniform { first, len } => (first + at * len, len),
            Rows::Offsets32 { at: offsets } => {
                let pair: [u8; 8] = read(map, offsets + at * 4)?;
                let [from, to] = [&pair[..4], &pair[4..]].map(le);
                (from, to.wrapping_sub(from))
            }
            Rows::Offsets64 { at: offsets } => {
                let pair: [u8; 16] = read(map, offsets + at * 8)?;
                let [from, to] = [&pair[..8], &pair[8..]].map(le);
                (from, to.wrapping_sub(from))
            }
            Rows::Views32 { offsets_at, sizes_at } => (
                le(&read::<4>(map, offsets_at + at * 4)?),
                le(&read::<4>(map, sizes_at + at * 4)?),
            ),
            Rows::Views64 { offsets_at, sizes_at } => (
                le(&read::<8>(map, offsets_at + at * 8)?),
                le(&read::<8>(map, sizes_at + at * 8)?),
            ),
        };
        // Checked at open; the file may have been written to since.
        if first.checked_add(len).is_none_or(|end| end > batch.layout.values) {
            return Err(SourceError::Changed {
                path: map.path().to_owned(),
                problem: format!("the offsets of row {row} are not those seen at open"),
            });
        }
        Ok(Found { batch, first, len })
    }

    /// Tokens in `row`.
    pub(crate) fn row_len(&self, row: u64) -> Result<u64, SourceError> {
        self.find(row).map(|f| f.len)
    }

    /// Copies up to `out.len()` tokens of `row`, but no more than `limit`, and returns how many.
    #[inline]
    pub(crate) fn read_row(
        &self,
        row: u64,
        out: &mut [i32],
        limit: usize,
        max: u32,
    ) -> Result<usize, SourceError> {
        let found = self.find(row)?;
        let n = out
            .len()
            .min(limit)
            .min(usize::try_from(found.len).unwrap_or(usize::MAX));
        if n == 0 {
            return Ok(0);
        }
        let map = &self.parts[found.batch.part as usize].map;
        let from = self.values(map, &found, n as u64)?;
        // SAFETY: `values` checked that `n` values lie inside the map, which is read-only and not `out`.
        let good = unsafe { copy_tokens(self.int, from, &mut out[..n], max) };
        map.check_lost()?;
        if good {
            Ok(n)
        } else {
            Err(self.bad_token(map, row, from, n, max))
        }
    }

    /// Copies `out[i].len()` tokens of each of `rows` side by side; false when a row has fewer, or more than `limit` are
    /// asked for, or anything is wrong with one of them, which [`Self::read_row`] then names.
    #[inline]
    pub(crate) fn read_rows(
        &self,
        rows: [u64; GROUP],
        out: [&mut [i32]; GROUP],
        limit: usize,
        max: u32,
    ) -> bool {
        let n = out[0].len();
        if n > limit || out.iter().any(|row| row.len() != n) {
            return false;
        }
        let (mut from, mut parts) = ([std::ptr::null(); GROUP], [0; GROUP]);
        for (i, row) in rows.into_iter().enumerate() {
            let Ok(found) = self.find(row) else { return false };
            parts[i] = found.batch.part as usize;
            match self.values(&self.parts[parts[i]].map, &found, n as u64) {
                Ok(values) if found.len >= n as u64 => from[i] = values,
                _ => return false,
            }
        }
        // SAFETY: `values` checked that `n` values lie inside the map for each row; maps are read-only and none of `out`,
        // all of which have `n` tokens.
        let good = unsafe { copy_group(self.int, from, out, max) };
        good && parts
            .iter()
            .all(|&part| self.parts[part].map.check_lost().is_ok())
    }

    /// Asks for the address translations of `row`; a row out of range is ignored.
    #[inline]
    pub(crate) fn translate(&self, row: u64) {
        if let Ok(found) = self.find(row) {
            let width = self.int.width();
            let at = found.batch.layout.values_at + found.first * width;
            self.parts[found.batch.part as usize]
                .map
                .translate(at, found.len * width);
        }
    }

    /// Copies `row` as raw little-endian u64, for indices tables.
    pub(crate) fn read_u64(&self, row: u64) -> Result<u64, SourceError> {
        let found = self.find(row)?;
        let map = &self.parts[found.batch.part as usize].map;
        let at = found.batch.layout.values_at + found.first * 8;
        Ok(u64::from_le_bytes(read(map, at)?))
    }

    #[inline]
    fn values(&self, map: &MappedFile, found: &Found, n: u64) -> Result<*const u8, SourceError> {
        let width = self.int.width();
        let at = found.batch.layout.values_at + found.first * width;
        map.bytes(at, n * width).ok_or_else(|| SourceError::Changed {
            path: map.path().to_owned(),
            problem: "a row lies outside the file".to_owned(),
        })
    }

    #[cold]
    fn bad_token(&self, map: &MappedFile, row: u64, from: *const u8, n: usize, max: u32) -> SourceError {
        // SAFETY: the caller just copied these `n` values from the map.
        match unsafe { first_bad(self.int, from, n, max) } {
            Some((position, value)) => SourceError::BadToken {
                path: map.path().to_owned(),
                row,
                column: self.column.clone(),
                position,
                value,
                max,
            },
            None => SourceError::Changed {
                path: map.path().to_owned(),
                problem: format!("row {row} changed while it was read"),
            },
        }
    }

    /// Asks for the pages of these rows, one request for rows that follow each other in a file; rows out of range
    /// are ignored.
    pub(crate) fn will_need(&self, rows: impl Iterator<Item = u64>) {
        let mut run: Option<(u32, u64, u64)> = None;
        for found in rows.filter_map(|row| self.find(row).ok()) {
            let width = self.int.width();
            let part = found.batch.part;
            let at = found.batch.layout.values_at + found.first * width;
            let len = found.len * width;
            match &mut run {
                Some((p, start, so_far)) if *p == part && at == *start + *so_far => *so_far += len,
                _ => {
                    self.page_in(run);
                    run = Some((part, at, len));
                }
            }
        }
        self.page_in(run);
    }

    fn page_in(&self, run: Option<(u32, u64, u64)>) {
        if let Some((part, at, len)) = run {
            self.parts[part as usize].map.will_need(at, len);
        }
    }

    /// Which file holds `row` (in dataset order), and the row's number in it.
    pub(crate) fn place_of(&self, row: u64) -> Option<(usize, u64)> {
        if row >= self.num_rows() {
            return None;
        }
        let part = self.batches[self.batch_of(row)].part as usize;
        Some((part, row - self.parts[part].first_row))
    }

    /// Compares every file with what it was at open.
    pub(crate) fn check_unchanged(&self) -> Result<(), SourceError> {
        self.parts.iter().try_for_each(|p| p.map.check_unchanged())
    }
}

#[inline]
fn read<const N: usize>(map: &MappedFile, at: u64) -> Result<[u8; N], SourceError> {
    let mut bytes = [0u8; N];
    map.copy(at, &mut bytes)?;
    Ok(bytes)
}

/// A non-negative little-endian integer of 4 or 8 bytes; a negative one becomes huge and fails the bounds
/// check.
#[inline]
fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0u64, |sum, &b| sum << 8 | u64::from(b))
}
