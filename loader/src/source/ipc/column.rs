//! The wanted column of one record batch: where its rows lie, and whether its offsets and nulls are sound.

use super::columns::{Column, ColumnKind, ListKind};
use super::layout::{BatchLayout, FirstNull, Lengths, Rows};
use super::walk::Walk;
use super::window::{WINDOW, le_int};
use crate::source::SourceError;

impl Walk<'_> {
    /// Locates the wanted column of one batch. `node(i)` is (length, null count), `buffer(i)` (offset in
    /// body, bytes), both counted from the column's first; buffers are known to lie inside the body.
    pub(super) fn column(
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
pub(super) struct Place {
    pub(super) what: String,
    pub(super) first_row: u64,
    pub(super) rows: u64,
    pub(super) body_at: u64,
}
