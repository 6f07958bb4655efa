//! The Arrow file format: a footer says where the record batches are.

use arrow_ipc::{MetadataVersion, root_as_footer};

use super::layout::{Choose, FileLayout, IpcFormat};
use super::walk::{MAGIC, MAX_HEADER, Message, Walk, one_line};
use super::window::le_u32;
use crate::source::SourceError;

/// Most padding between messages of a file; a message itself is longer.
const MAX_GAP: u64 = 72;

impl Walk<'_> {
    pub(super) fn file_format(&mut self, choose: Choose<'_>) -> Result<FileLayout, SourceError> {
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
}
