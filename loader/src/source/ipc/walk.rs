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
use std::path::Path;

use arrow_ipc::{Endianness, MessageHeader, MetadataVersion, root_as_message};

use super::columns::Columns;
use super::layout::{Choose, FileLayout, IpcFormat, Lengths};
use super::window::{Window, le_u32};
use crate::source::SourceError;

/// Longest message header accepted; real ones have kilobytes.
pub(super) const MAX_HEADER: u64 = 64 << 20;
/// What the file format begins and ends with.
pub(super) const MAGIC: &[u8; 6] = b"ARROW1";

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

/// A message header that was found in the file.
pub(super) struct Message {
    pub(super) header: Vec<u8>,
    pub(super) body_at: u64,
}

/// What the walk has collected so far; only there once the schema was read.
pub(super) struct Found {
    pub(super) layout: FileLayout,
}

pub(super) struct Walk<'a> {
    pub(super) path: &'a Path,
    pub(super) len: u64,
    pub(super) expected_rows: Option<(u64, &'a str)>,
    pub(super) window: Window<'a>,
}

impl Walk<'_> {
    pub(super) fn bad(&self, problem: impl Into<String>) -> SourceError {
        SourceError::corrupt(self.path, problem)
    }

    /// An error about a file that ends too early, with what the directory said it holds.
    pub(super) fn cut(&self, problem: String, found: Option<&FileLayout>) -> SourceError {
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

    pub(super) fn stream_format(&mut self, choose: Choose<'_>) -> Result<FileLayout, SourceError> {
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
    pub(super) fn prefix(
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

    pub(super) fn end_of_marker(&mut self, at: u64) -> Result<u64, SourceError> {
        Ok(if le_u32(self.window.get(at, 4)?) == u32::MAX {
            at + 8
        } else {
            at + 4
        })
    }

    /// Takes in one message and returns the length of its body.
    pub(super) fn handle(
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

    pub(super) fn schema(
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
}

/// Whether another message lies inside a header, after the continuation word that begins one: a header whose
/// length was damaged parses all the same, because bytes behind the header proper are taken for padding.
fn swallows_a_message(header: &[u8]) -> bool {
    (8..header.len().saturating_sub(8))
        .step_by(8)
        .any(|at| header[at..at + 4] == [0xff; 4] && root_as_message(&header[at + 8..]).is_ok())
}

/// Flatbuffer errors span lines; the first one says what is wrong.
pub(super) fn one_line(error: &dyn std::fmt::Display) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches('.')
        .to_owned()
}
