//! One record batch: counts and buffers checked against the schema and the body.

use arrow_ipc::{CompressionType, RecordBatch};

use super::column::Place;
use super::layout::{FileLayout, RawBatch, RawBuffer};
use super::walk::Walk;
use crate::source::SourceError;

/// Most padding at the end of a body; a message is longer.
const MAX_PADDING: u64 = 128;

impl Walk<'_> {
    /// Checks that the buffers of a batch lie in its body and fill it: a body whose length was damaged would
    /// reach over the next message.
    pub(super) fn check_body(
        &self,
        place: &str,
        batch: RecordBatch<'_>,
        body_len: u64,
    ) -> Result<(), SourceError> {
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

    pub(super) fn record_batch(
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
}
