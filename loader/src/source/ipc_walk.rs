//! Reads the structure of an Arrow IPC file, stream or file format, without touching its token data.
//!
//! Only message headers and the offsets of the wanted column are read, through `pread` (a file cut off
//! meanwhile is an I/O error, never a signal). Cost: a header and a few kilobytes of offsets per record
//! batch; memory: one 16 KiB window and about 56 bytes per batch. Everything a later read relies on is
//! checked here: counts, buffer bounds, offsets in order and inside the values.
//!
//! What is found here: files cut anywhere (a stream must end with its end-of-stream marker, as `datasets` and
//! pyarrow write it), damaged headers, offsets, counts and null bitmaps. What is not: a flipped bit inside a
//! token, which is another valid token; a recorded fingerprint of mode `full` finds that.
//!
//! Format facts: Arrow columnar format 1.5, "Serialization and Interprocess Communication".

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use arrow_ipc::{
    CompressionType, Endianness, MessageHeader, MetadataVersion, RecordBatch, root_as_footer, root_as_message,
};

use super::SourceError;
use super::ipc_columns::{Column, ColumnKind, Columns, ListKind};

/// Longest message header accepted; real ones have kilobytes.
const MAX_HEADER: u64 = 64 << 20;
const WINDOW: u64 = 16 << 10;
/// Most padding at the end of a body; a message is longer.
const MAX_PADDING: u64 = 128;
/// Most padding between messages of a file; a message itself is longer.
const MAX_GAP: u64 = 72;
const MAGIC: &[u8; 6] = b"ARROW1";

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

    fn add(&mut self, other: Self) {
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

/// Reads the structure of `file`, opened from `path`. `expected_rows` (row count and who says so) goes into
/// messages about files that are cut off.
///
/// # Errors
/// [`SourceError::Corrupt`] naming the record batch and what was expected and found, [`SourceError::Io`], and
/// whatever `choose` returns.
pub(crate) fn read_layout(
    path: &Path,
    file: &File,
    expected_rows: Option<(u64, &str)>,
    choose: Choose<'_>,
) -> Result<FileLayout, SourceError> {
    let len = file
        .metadata()
        .map_err(|e| SourceError::io(path, "examine", e))?
        .len();
    let mut walk = Walk {
        path,
        len,
        expected_rows,
        window: Window {
            path,
            file,
            buffer: Vec::new(),
            at: 0,
        },
    };
    if len == 0 {
        return Err(walk.bad("is empty: 0 bytes, not even an Arrow schema"));
    }
    let head = walk.window.get(0, len.min(64))?;
    if head.starts_with(MAGIC) {
        return walk.file_format(choose);
    }
    if head.starts_with(b"version https://git-lfs") {
        return Err(
            walk.bad("is a Git LFS pointer, not the data itself: run `git lfs pull` in its repository")
        );
    }
    if head.starts_with(b"PAR1") {
        return Err(walk.bad("is a Parquet file, not Arrow IPC (its name should end with .parquet)"));
    }
    walk.stream_format(choose)
}

/// Reads small ranges of a file through one buffer.
struct Window<'a> {
    path: &'a Path,
    file: &'a File,
    buffer: Vec<u8>,
    at: u64,
}

impl Window<'_> {
    /// The bytes `at..at + len`, which must lie inside the file.
    fn get(&mut self, at: u64, len: u64) -> Result<&[u8], SourceError> {
        let end = at + len;
        if at < self.at || end > self.at + self.buffer.len() as u64 {
            self.buffer
                .resize(usize::try_from(len.max(WINDOW)).unwrap_or(usize::MAX), 0);
            self.at = at;
            let mut filled = 0usize;
            while filled < self.buffer.len() {
                match self.file.read_at(&mut self.buffer[filled..], at + filled as u64) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(SourceError::io(self.path, format!("read at byte {at}"), e)),
                }
            }
            self.buffer.truncate(filled);
            if (filled as u64) < len {
                let problem = format!("only {filled} of {len} bytes could be read at byte {at}");
                return Err(SourceError::Changed {
                    path: self.path.to_owned(),
                    problem,
                });
            }
        }
        let from = (at - self.at) as usize;
        Ok(&self.buffer[from..from + len as usize])
    }

    /// The first zero among the bits `from..to` of a bitmap that begins at byte `at`.
    fn first_zero_bit(&mut self, at: u64, from: u64, to: u64) -> Result<Option<u64>, SourceError> {
        let mut bit = from;
        while bit < to {
            let end = to.min((bit / 8 + WINDOW / 2) * 8);
            let first_byte = bit / 8;
            let bytes = self.get(at + first_byte, end.div_ceil(8) - first_byte)?;
            let zero = (bit..end).find(|b| {
                let byte = bytes[(b / 8 - first_byte) as usize];
                byte >> (b % 8) & 1 == 0
            });
            if zero.is_some() {
                return Ok(zero);
            }
            bit = end;
        }
        Ok(None)
    }
}

/// A message header that was found in the file.
struct Message {
    header: Vec<u8>,
    body_at: u64,
}

/// What the walk has collected so far; only there once the schema was read.
struct Found {
    layout: FileLayout,
}

struct Walk<'a> {
    path: &'a Path,
    len: u64,
    expected_rows: Option<(u64, &'a str)>,
    window: Window<'a>,
}

impl Walk<'_> {
    fn bad(&self, problem: impl Into<String>) -> SourceError {
        SourceError::corrupt(self.path, problem)
    }

    /// An error about a file that ends too early, with what the directory said it holds.
    fn cut(&self, problem: String, found: Option<&FileLayout>) -> SourceError {
        let mut text = problem;
        if let Some(found) = found {
            text += &format!(
                "; {} whole record batches with {} rows come before",
                found.num_batches, found.rows
            );
        }
        if let Some((rows, who)) = self.expected_rows {
            text += &format!("; {who} says {rows} rows");
        }
        self.bad(text + ". The file is cut off or was not finished: copy or write it again")
    }

    fn stream_format(&mut self, choose: Choose<'_>) -> Result<FileLayout, SourceError> {
        let mut at = 0u64;
        let mut found: Option<Found> = None;
        loop {
            let place = match &found {
                None => "the schema".to_owned(),
                Some(f) => format!("record batch {}", f.layout.num_batches),
            };
            let Some((header_at, header_len)) = self.prefix(at, &place, found.as_ref())? else {
                // End-of-stream marker; `header_at` of it was 4 or 8 bytes, found again here.
                let end = self.end_of_marker(at)?;
                let Some(done) = found else {
                    return Err(self.bad("ends before its schema"));
                };
                if end != self.len {
                    return Err(self.bad(format!(
                        "has an end-of-stream marker at byte {at}, after {} record batches with {} rows, but {} bytes follow it: \
                         the length of a message is damaged, or the file was written over a longer one",
                        done.layout.num_batches,
                        done.layout.rows,
                        self.len - end
                    )));
                }
                return Ok(done.layout);
            };
            let header = self.window.get(header_at, header_len)?.to_vec();
            let body_at = header_at + header_len;
            let body_len = self.handle(
                &place,
                Message { header, body_at },
                &mut found,
                IpcFormat::Stream,
                choose,
            )?;
            at = body_at + body_len;
        }
    }

    /// Position and length of the message header at `at`, `None` at the end-of-stream marker.
    fn prefix(
        &mut self,
        at: u64,
        place: &str,
        found: Option<&Found>,
    ) -> Result<Option<(u64, u64)>, SourceError> {
        let left = self.len - at;
        if left < 4 {
            let problem = if left == 0 {
                format!("ends at byte {at} without the 8 bytes of the end-of-stream marker")
            } else {
                format!(
                    "ends with {left} stray bytes at byte {at} where {place} or the end-of-stream marker was expected"
                )
            };
            return Err(self.cut(problem, found.map(|f| &f.layout)));
        }
        let word = le_u32(self.window.get(at, 4)?);
        // Streams from before Arrow 0.15 have no continuation word.
        let (length, header_at) = if word == u32::MAX {
            if left < 8 {
                let problem = format!("ends inside the 8-byte prefix of {place}: {left} bytes are there");
                return Err(self.cut(problem, found.map(|f| &f.layout)));
            }
            (le_u32(self.window.get(at + 4, 4)?), at + 8)
        } else {
            (word, at + 4)
        };
        if length == 0 {
            return Ok(None);
        }
        let length = u64::from(length);
        if length > MAX_HEADER {
            return Err(self.bad(if found.is_none() {
                "is not an Arrow IPC stream or file (its first bytes are no message)".to_owned()
            } else {
                format!("{place}: a header of {length} bytes at byte {at} is not believable: damaged, or not Arrow IPC")
            }));
        }
        if length > self.len - header_at {
            if found.is_none() && word != u32::MAX {
                return Err(self.bad("is not an Arrow IPC stream or file (its first bytes are no message)"));
            }
            let problem = format!(
                "{place}: its header ends at byte {}, the file at byte {}",
                header_at + length,
                self.len
            );
            return Err(self.cut(problem, found.map(|f| &f.layout)));
        }
        Ok(Some((header_at, length)))
    }

    fn end_of_marker(&mut self, at: u64) -> Result<u64, SourceError> {
        Ok(if le_u32(self.window.get(at, 4)?) == u32::MAX {
            at + 8
        } else {
            at + 4
        })
    }

    /// Takes in one message and returns the length of its body.
    fn handle(
        &mut self,
        place: &str,
        message: Message,
        found: &mut Option<Found>,
        format: IpcFormat,
        choose: Choose<'_>,
    ) -> Result<u64, SourceError> {
        let parsed = root_as_message(&message.header)
            .map_err(|e| self.bad(format!("{place}: its header is damaged ({})", one_line(&e))))?;
        if swallows_a_message(&message.header) {
            return Err(self.bad(format!(
                "{place}: its header of {} bytes reaches over the next message: its length is damaged",
                message.header.len()
            )));
        }
        if parsed.version() < MetadataVersion::V4 || parsed.version() > MetadataVersion::V5 {
            return Err(self.bad(format!(
                "{place}: metadata version {:?} is not supported",
                parsed.version()
            )));
        }
        let body_len = u64::try_from(parsed.bodyLength()).map_err(|_| {
            self.bad(format!(
                "{place}: its body has a length of {} bytes",
                parsed.bodyLength()
            ))
        })?;
        if body_len > self.len - message.body_at {
            let problem = format!(
                "{place}: {} bytes expected up to its end, {} bytes found",
                message.body_at.saturating_add(body_len),
                self.len
            );
            return Err(self.cut(problem, found.as_ref().map(|f| &f.layout)));
        }
        match (parsed.header_type(), found) {
            (MessageHeader::Schema, slot @ None) => {
                let schema = parsed
                    .header_as_schema()
                    .ok_or_else(|| self.bad("the schema message holds no schema"))?;
                *slot = Some(self.schema(schema, parsed.version(), format, choose)?);
                if body_len > 0 {
                    return Err(self.bad(format!(
                        "the schema has a body of {body_len} bytes: its length is damaged"
                    )));
                }
            }
            (MessageHeader::Schema, Some(_)) => {
                return Err(self.bad(format!(
                    "{place}: a second schema stands where a record batch was expected"
                )));
            }
            (_, None) => return Err(self.bad("does not begin with a schema")),
            (MessageHeader::DictionaryBatch, Some(_)) => {
                let data = parsed.header_as_dictionary_batch().and_then(|d| d.data());
                let data = data.ok_or_else(|| self.bad(format!("{place}: a dictionary holds no values")))?;
                self.check_body(place, data, body_len)?;
            }
            (MessageHeader::RecordBatch, Some(found)) => {
                let batch = parsed
                    .header_as_record_batch()
                    .ok_or_else(|| self.bad(format!("{place}: the message holds no record batch")))?;
                self.record_batch(place, batch, message.body_at, body_len, &mut found.layout)?;
            }
            (other, Some(_)) => {
                return Err(self.bad(format!(
                    "{place}: a message of type {other:?} stands where a record batch was expected"
                )));
            }
        }
        Ok(body_len)
    }

    fn schema(
        &self,
        schema: arrow_ipc::Schema<'_>,
        version: MetadataVersion,
        format: IpcFormat,
        choose: Choose<'_>,
    ) -> Result<Found, SourceError> {
        if schema.endianness() != Endianness::Little {
            return Err(self.bad("holds big-endian data, which is not supported"));
        }
        let columns = Columns::of(schema, version).map_err(|e| self.bad(e))?;
        let column = choose(self.path, &columns)?;
        Ok(Found {
            layout: FileLayout {
                format,
                columns,
                column,
                batches: Vec::new(),
                num_batches: 0,
                rows: 0,
                lengths: Lengths::NONE,
                first_null: None,
                compression: None,
                raw: Vec::new(),
            },
        })
    }

    fn file_format(&mut self, choose: Choose<'_>) -> Result<FileLayout, SourceError> {
        // Magic and padding in front; footer, its length and the magic behind.
        if self.len < 8 + 4 + 6 {
            return Err(self.cut(format!("has {} bytes, too few for an Arrow file", self.len), None));
        }
        let tail_at = self.len - 10;
        let tail = self.window.get(tail_at, 10)?;
        let footer_len = u64::from(le_u32(tail));
        if &tail[4..] != MAGIC {
            return Err(self.cut(
                "does not end with the 6 bytes ARROW1 that close an Arrow file".to_owned(),
                None,
            ));
        }
        if footer_len > MAX_HEADER || footer_len + 8 > tail_at {
            return Err(self.bad(format!("its footer claims {footer_len} bytes: damaged")));
        }
        let footer_at = tail_at - footer_len;
        let footer_bytes = self.window.get(footer_at, footer_len)?.to_vec();
        let footer = root_as_footer(&footer_bytes)
            .map_err(|e| self.bad(format!("its footer is damaged ({})", one_line(&e))))?;
        if footer.version() < MetadataVersion::V4 || footer.version() > MetadataVersion::V5 {
            return Err(self.bad(format!(
                "metadata version {:?} is not supported",
                footer.version()
            )));
        }
        let schema = footer
            .schema()
            .ok_or_else(|| self.bad("its footer holds no schema"))?;
        let mut found = Some(self.schema(schema, footer.version(), IpcFormat::File, choose)?);
        for (i, block) in footer.recordBatches().into_iter().flatten().enumerate() {
            let place = format!("record batch {i}");
            let (Ok(at), Ok(meta), Ok(body)) = (
                u64::try_from(block.offset()),
                u64::try_from(block.metaDataLength()),
                u64::try_from(block.bodyLength()),
            ) else {
                return Err(self.bad(format!(
                    "{place}: the footer places it at a negative offset or length"
                )));
            };
            let end = at.checked_add(meta).and_then(|e| e.checked_add(body));
            if at < 8 || meta < 8 || end.is_none_or(|e| e > footer_at) {
                return Err(self.bad(format!(
                    "{place}: the footer places it at bytes {at} to {}, outside the {footer_at} bytes before the footer",
                    at.saturating_add(meta).saturating_add(body)
                )));
            }
            let Some((header_at, header_len)) = self.prefix(at, &place, found.as_ref())? else {
                return Err(self.bad(format!(
                    "{place}: an end-of-stream marker stands where the footer places it"
                )));
            };
            // Writers count the padding of the header in both lengths.
            if header_at + header_len != at + meta {
                return Err(self.bad(format!(
                    "{place}: its header ends at byte {}, by the footer at byte {}",
                    header_at + header_len,
                    at + meta
                )));
            }
            let header = self.window.get(header_at, header_len)?.to_vec();
            let message = Message {
                header,
                body_at: at + meta,
            };
            let before = found.as_ref().map_or(0, |f| f.layout.num_batches);
            let body_len = self.handle(&place, message, &mut found, IpcFormat::File, choose)?;
            if body_len != body {
                return Err(self.bad(format!(
                    "{place}: its body has {body_len} bytes, by the footer {body}"
                )));
            }
            if found.as_ref().is_none_or(|f| f.layout.num_batches != before + 1) {
                return Err(self.bad(format!(
                    "{place}: another message stands where the footer places it"
                )));
            }
        }
        let blocks = footer
            .recordBatches()
            .into_iter()
            .flatten()
            .chain(footer.dictionaries().into_iter().flatten());
        let mut spans: Vec<(u64, u64)> = blocks
            .map(|b| {
                (
                    b.offset() as u64,
                    (b.offset() as u64)
                        .saturating_add(b.metaDataLength() as u64)
                        .saturating_add(b.bodyLength() as u64),
                )
            })
            .collect();
        self.check_spans(&mut spans, footer_at)?;
        found.map(|f| f.layout).ok_or_else(|| self.bad("holds no schema"))
    }

    /// The messages the footer lists must fill the file, but for padding and the end-of-stream marker: a
    /// damaged footer could leave a batch out.
    fn check_spans(&mut self, spans: &mut Vec<(u64, u64)>, footer_at: u64) -> Result<(), SourceError> {
        // Writers pad the magic to 8 bytes, some to 64.
        let mut schema_at = 8;
        while schema_at < MAX_GAP && schema_at + 4 <= footer_at && le_u32(self.window.get(schema_at, 4)?) == 0
        {
            schema_at += 8;
        }
        let schema_end = match self.prefix(schema_at, "the schema", None)? {
            Some((at, len)) => at + len,
            None => return Err(self.bad("ends before its schema")),
        };
        spans.push((footer_at, self.len));
        spans.sort_unstable();
        let mut end = schema_end;
        for &(start, next_end) in spans.iter() {
            if start < end || start - end > MAX_GAP {
                return Err(self.bad(format!(
                    "the footer lists messages up to byte {end} and from byte {start} on: it is damaged, a record batch is missing \
                     from it or listed twice"
                )));
            }
            end = next_end;
        }
        Ok(())
    }

    /// Checks that the buffers of a batch lie in its body and fill it: a body whose length was damaged would
    /// reach over the next message.
    fn check_body(&self, place: &str, batch: RecordBatch<'_>, body_len: u64) -> Result<(), SourceError> {
        let mut used = 0u64;
        for (i, buffer) in batch.buffers().into_iter().flatten().enumerate() {
            let end = match (u64::try_from(buffer.offset()), u64::try_from(buffer.length())) {
                (Ok(at), Ok(len)) => at.checked_add(len).filter(|&end| end <= body_len),
                _ => None,
            };
            let Some(end) = end else {
                return Err(self.bad(format!(
                    "{place}: buffer {i} lies at byte {} with {} bytes, outside the body of {body_len} bytes",
                    buffer.offset(),
                    buffer.length()
                )));
            };
            used = used.max(end);
        }
        if body_len - used > MAX_PADDING {
            return Err(self.bad(format!(
                "{place}: its body has {body_len} bytes, its buffers end at byte {used}: a length is damaged"
            )));
        }
        Ok(())
    }

    fn record_batch(
        &mut self,
        place: &str,
        batch: RecordBatch<'_>,
        body_at: u64,
        body_len: u64,
        layout: &mut FileLayout,
    ) -> Result<(), SourceError> {
        let rows = u64::try_from(batch.length())
            .map_err(|_| self.bad(format!("{place}: claims {} rows", batch.length())))?;
        let nodes = batch.nodes();
        let num_nodes = nodes.map_or(0, |n| n.len());
        let variadic: Vec<usize> = batch
            .variadicBufferCounts()
            .into_iter()
            .flatten()
            .map(|n| usize::try_from(n).unwrap_or(usize::MAX))
            .collect();
        let buffers = batch.buffers();
        let num_buffers = buffers.map_or(0, |b| b.len());
        let expected_buffers = layout.columns.num_buffers(&variadic);
        if num_nodes != layout.columns.num_nodes() || expected_buffers != Some(num_buffers) {
            return Err(self.bad(format!(
                "{place}: {num_nodes} nodes and {num_buffers} buffers, the schema asks for {} and {}",
                layout.columns.num_nodes(),
                expected_buffers.map_or("another number".to_owned(), |n| n.to_string())
            )));
        }
        let node = |i: usize| nodes.and_then(|n| (i < n.len()).then(|| *n.get(i)));
        for (i, column) in layout.columns.list.iter().enumerate() {
            let length = node(layout.columns.node(i)).map_or(-1, |n| n.length());
            if u64::try_from(length) != Ok(rows) {
                return Err(self.bad(format!(
                    "{place}: {rows} rows, but its column \"{}\" has {length}",
                    column.name
                )));
            }
        }
        self.check_body(place, batch, body_len)?;
        let codec = batch.compression().map(|c| match c.codec() {
            CompressionType::LZ4_FRAME => "lz4",
            CompressionType::ZSTD => "zstd",
            _ => "an unknown codec",
        });
        if let Some(column) = layout.column {
            let first_buffer = layout.columns.buffer(column, &variadic);
            let buffer = |i: usize| {
                let i = first_buffer + i;
                buffers
                    .filter(|b| i < b.len())
                    .map(|b| *b.get(i))
                    .map_or((0, 0), |b| (b.offset() as u64, b.length() as u64))
            };
            let node = |i: usize| {
                node(layout.columns.node(column) + i).map_or((0, 0), |n| (n.length(), n.null_count()))
            };
            let kind = &layout.columns.list[column];
            if codec.is_some() || layout.compression.is_some() {
                let values = u64::try_from(node(1).0)
                    .map_err(|_| self.bad(format!("{place}: its values have a length of {}", node(1).0)))?;
                let buffers = (0..5)
                    .map(buffer)
                    .map(|(at, len)| RawBuffer {
                        at: body_at + at,
                        len,
                    })
                    .collect();
                let (row_nulls, value_nulls) = (node(0).1, node(1).1);
                layout.raw.push(RawBatch {
                    codec,
                    rows,
                    values,
                    row_nulls,
                    value_nulls,
                    buffers,
                });
            } else {
                let place = Place {
                    what: format!("{place}, column \"{}\"", kind.name),
                    first_row: layout.rows,
                    rows,
                    body_at,
                };
                let (one, lengths, null) = self.column(&place, kind, &node, &buffer)?;
                layout.batches.push(one);
                layout.lengths.add(lengths);
                if layout.first_null.is_none() {
                    layout.first_null = null;
                }
            }
        }
        if codec.is_some() && layout.compression.is_none() {
            layout.compression = codec;
            if !layout.batches.is_empty() {
                return Err(self.bad(format!(
                    "{place}: is compressed, batches before it are not; write the file again"
                )));
            }
        }
        layout.num_batches += 1;
        layout.rows = layout
            .rows
            .checked_add(rows)
            .ok_or_else(|| self.bad(format!("{place}: the row count overflows")))?;
        Ok(())
    }

    /// Locates the wanted column of one batch. `node(i)` is (length, null count), `buffer(i)` (offset in
    /// body, bytes), both counted from the column's first; buffers are known to lie inside the body.
    fn column(
        &mut self,
        place: &Place,
        column: &Column,
        node: &dyn Fn(usize) -> (i64, i64),
        buffer: &dyn Fn(usize) -> (u64, u64),
    ) -> Result<(BatchLayout, Lengths, Option<FirstNull>), SourceError> {
        let rows = place.rows;
        let mut null = self.null_row(place, node(0).1, buffer(0))?;
        let (list, int) = match column.kind {
            ColumnKind::Int(int) => {
                let values_at = self.room(place, "values", buffer(1), rows, int.width())?;
                let row_places = Rows::Uniform { first: 0, len: 1 };
                let lengths = if rows == 0 {
                    Lengths::NONE
                } else {
                    Lengths {
                        min: 1,
                        max: 1,
                        total: rows,
                    }
                };
                return Ok((
                    BatchLayout {
                        rows,
                        values_at,
                        values: rows,
                        row_places,
                    },
                    lengths,
                    null,
                ));
            }
            ColumnKind::Tokens(t) => (t.list, t.int),
            ColumnKind::Other => return Err(self.bad(format!("{}: it is no list of integers", place.what))),
        };
        let values = u64::try_from(node(1).0).map_err(|_| {
            self.bad(format!(
                "{}: its values have a length of {}",
                place.what,
                node(1).0
            ))
        })?;
        // The item's buffers follow the list's own: validity, then values.
        let item = match list {
            ListKind::FixedSizeList(_) => 1,
            ListKind::List | ListKind::LargeList => 2,
            ListKind::ListView | ListKind::LargeListView => 3,
        };
        let values_at = self.room(place, "values", buffer(item + 1), values, int.width())?;
        let (row_places, lengths) = match list {
            ListKind::FixedSizeList(size) => {
                let len = u64::from(size);
                if rows.checked_mul(len).is_none_or(|need| need > values) {
                    return Err(self.bad(format!(
                        "{}: {rows} rows of {len} values, but {values} values",
                        place.what
                    )));
                }
                let lengths = Lengths {
                    min: len,
                    max: len,
                    total: rows * len,
                };
                (
                    Rows::Uniform { first: 0, len },
                    if rows == 0 { Lengths::NONE } else { lengths },
                )
            }
            // An empty list array may have no offsets at all.
            _ if rows == 0 => (Rows::Uniform { first: 0, len: 0 }, Lengths::NONE),
            ListKind::List => self.offsets(place, buffer(1), values, 4)?,
            ListKind::LargeList => self.offsets(place, buffer(1), values, 8)?,
            ListKind::ListView => self.views(place, buffer(1), buffer(2), values, 4)?,
            ListKind::LargeListView => self.views(place, buffer(1), buffer(2), values, 8)?,
        };
        let batch = BatchLayout {
            rows,
            values_at,
            values,
            row_places,
        };
        if null.is_none() && node(1).1 != 0 {
            null = self.null_value(place, &batch, node(1).1, buffer(item))?;
        }
        Ok((batch, lengths, null))
    }

    /// File offset of a buffer that must hold `count` elements of `width` bytes.
    fn room(
        &self,
        place: &Place,
        what: &str,
        (at, len): (u64, u64),
        count: u64,
        width: u64,
    ) -> Result<u64, SourceError> {
        match count.checked_mul(width) {
            Some(need) if need <= len => Ok(place.body_at + at),
            _ => Err(self.bad(format!(
                "{}: its {what} need {count} x {width} bytes, the buffer has {len}",
                place.what
            ))),
        }
    }

    /// The first null row, when the node counts any.
    fn null_row(
        &mut self,
        place: &Place,
        nulls: i64,
        validity: (u64, u64),
    ) -> Result<Option<FirstNull>, SourceError> {
        if nulls == 0 || place.rows == 0 {
            return Ok(None);
        }
        let at = self.bitmap(place, nulls, place.rows, validity)?;
        let row = self.window.first_zero_bit(at, 0, place.rows)?;
        Ok(row.map(|row| FirstNull {
            row: place.first_row + row,
            what: "the row is null".to_owned(),
        }))
    }

    fn null_value(
        &mut self,
        place: &Place,
        batch: &BatchLayout,
        nulls: i64,
        validity: (u64, u64),
    ) -> Result<Option<FirstNull>, SourceError> {
        let at = self.bitmap(place, nulls, batch.values, validity)?;
        for row in 0..batch.rows {
            let (from, len) = self.row(batch, row)?;
            if let Some(bit) = self.window.first_zero_bit(at, from, from + len)? {
                return Ok(Some(FirstNull {
                    row: place.first_row + row,
                    what: format!("the value at position {} is null", bit - from),
                }));
            }
        }
        Ok(None)
    }

    fn bitmap(
        &self,
        place: &Place,
        nulls: i64,
        bits: u64,
        (at, len): (u64, u64),
    ) -> Result<u64, SourceError> {
        if u64::try_from(nulls).is_ok_and(|n| n <= bits) && len >= bits.div_ceil(8) {
            return Ok(place.body_at + at);
        }
        Err(self.bad(format!(
            "{}: {nulls} nulls among {bits} entries with a bitmap of {len} bytes",
            place.what
        )))
    }

    /// One row of a batch whose offsets were checked, as (first value, length).
    fn row(&mut self, batch: &BatchLayout, row: u64) -> Result<(u64, u64), SourceError> {
        let mut one = |at: u64, width: u64| -> Result<u64, SourceError> {
            Ok(le_int(self.window.get(at + row * width, width)?) as u64)
        };
        Ok(match batch.row_places {
            Rows::Uniform { first, len } => (first + row * len, len),
            Rows::Offsets32 { at } => {
                let from = one(at, 4)?;
                (from, one(at + 4, 4)? - from)
            }
            Rows::Offsets64 { at } => {
                let from = one(at, 8)?;
                (from, one(at + 8, 8)? - from)
            }
            Rows::Views32 { offsets_at, sizes_at } => (one(offsets_at, 4)?, one(sizes_at, 4)?),
            Rows::Views64 { offsets_at, sizes_at } => (one(offsets_at, 8)?, one(sizes_at, 8)?),
        })
    }

    /// Checks a list's offsets: in order, and inside the values. Rows of one length need no offsets later.
    fn offsets(
        &mut self,
        place: &Place,
        buffer: (u64, u64),
        values: u64,
        width: u64,
    ) -> Result<(Rows, Lengths), SourceError> {
        let rows = place.rows;
        let count = rows
            .checked_add(1)
            .ok_or_else(|| self.bad(format!("{}: too many rows", place.what)))?;
        let at = self.room(place, "offsets", buffer, count, width)?;
        let (mut lengths, mut first, mut last) = (Lengths::NONE, 0u64, None::<u64>);
        let mut row = 0u64;
        while row < count {
            let n = (count - row).min(WINDOW / width);
            let bytes = self.window.get(at + row * width, n * width)?;
            for (i, bytes) in bytes.chunks_exact(width as usize).enumerate() {
                let raw = le_int(bytes);
                let here = u64::try_from(raw).unwrap_or(u64::MAX);
                match last {
                    None => first = here,
                    Some(before) if here >= before => {
                        let len = here - before;
                        lengths.min = lengths.min.min(len);
                        lengths.max = lengths.max.max(len);
                    }
                    Some(before) => {
                        let at_row = (row + i as u64).saturating_sub(1);
                        return Err(self.bad(format!(
                            "{}: the offsets go backwards at row {at_row} of the batch ({before}, then {raw})",
                            place.what
                        )));
                    }
                }
                if here > values {
                    let at_row = (row + i as u64).saturating_sub(1);
                    return Err(self.bad(format!(
                        "{}: the offset {raw} at row {at_row} of the batch is outside its {values} values",
                        place.what
                    )));
                }
                last = Some(here);
            }
            row += n;
        }
        lengths.total = last.unwrap_or(first) - first;
        let row_places = match width {
            _ if lengths.min == lengths.max => Rows::Uniform {
                first,
                len: lengths.min,
            },
            4 => Rows::Offsets32 { at },
            _ => Rows::Offsets64 { at },
        };
        Ok((row_places, lengths))
    }

    /// Checks a list view's offsets and sizes.
    fn views(
        &mut self,
        place: &Place,
        offsets: (u64, u64),
        sizes: (u64, u64),
        values: u64,
        width: u64,
    ) -> Result<(Rows, Lengths), SourceError> {
        let rows = place.rows;
        let offsets_at = self.room(place, "offsets", offsets, rows, width)?;
        let sizes_at = self.room(place, "sizes", sizes, rows, width)?;
        let mut lengths = Lengths {
            total: 0,
            ..Lengths::NONE
        };
        let mut row = 0u64;
        while row < rows {
            let n = (rows - row).min(WINDOW / width);
            let offsets = self.window.get(offsets_at + row * width, n * width)?.to_vec();
            let sizes = self.window.get(sizes_at + row * width, n * width)?;
            let both = offsets
                .chunks_exact(width as usize)
                .zip(sizes.chunks_exact(width as usize));
            for (i, (offset, size)) in both.enumerate() {
                let (offset, size) = (le_int(offset), le_int(size));
                let inside = match (u64::try_from(offset), u64::try_from(size)) {
                    (Ok(from), Ok(len)) => from.checked_add(len).is_some_and(|end| end <= values),
                    _ => false,
                };
                if !inside {
                    return Err(self.bad(format!(
                        "{}: row {} of the batch has offset {offset} and size {size}, outside its {values} values",
                        place.what,
                        row + i as u64
                    )));
                }
                let len = size as u64;
                lengths.add(Lengths {
                    min: len,
                    max: len,
                    total: len,
                });
            }
            row += n;
        }
        Ok(if width == 4 {
            (Rows::Views32 { offsets_at, sizes_at }, lengths)
        } else {
            (Rows::Views64 { offsets_at, sizes_at }, lengths)
        })
    }
}

/// Where a column is read: the batch in words, its first row in the file, its rows, and where its body
/// begins.
struct Place {
    what: String,
    first_row: u64,
    rows: u64,
    body_at: u64,
}

/// Whether another message lies inside a header, after the continuation word that begins one: a header whose
/// length was damaged parses all the same, because bytes behind the header proper are taken for padding.
fn swallows_a_message(header: &[u8]) -> bool {
    (8..header.len().saturating_sub(8))
        .step_by(8)
        .any(|at| header[at..at + 4] == [0xff; 4] && root_as_message(&header[at + 8..]).is_ok())
}

fn le_u32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .rev()
        .fold(0, |sum, &b| sum << 8 | u32::from(b))
}

/// A little-endian signed integer of 4 or 8 bytes.
fn le_int(bytes: &[u8]) -> i64 {
    match *bytes {
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Flatbuffer errors span lines; the first one says what is wrong.
fn one_line(error: &dyn std::fmt::Display) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches('.')
        .to_owned()
}
