//! Indices tables, as `Dataset.shuffle` and `select` leave them in `cache-*.arrow`.

use std::path::Path;

use super::rows::Rows;
use crate::source::SourceError;
use crate::source::int_tokens::IntType;
use crate::source::ipc::{ColumnKind, Columns};
use crate::source::table::{ArrowTable, Shard, open_files};

/// Reads an indices table (one u64 column `indices`, as datasets writes it) over a table of `num_rows`.
///
/// # Errors
/// When it is no such table, is empty, or points outside.
pub(super) fn read_indices(path: &Path, num_rows: u64) -> Result<Rows, SourceError> {
    let table = open_indices(path)?;
    let n = table.num_rows();
    if n == 0 {
        return Err(SourceError::corrupt(
            path,
            "this indices table is empty: no sample would be left",
        ));
    }
    Rows::collect(
        num_rows,
        (0..n).map(|i| {
            let row = table.read_u64(i)?;
            if row < num_rows {
                return Ok(row);
            }
            Err(SourceError::corrupt(
                path,
                format!("entry {i} of this indices table is row {row}, but the dataset has {num_rows} rows: it belongs to other data"),
            ))
        }),
    )
}

/// Opens an indices table.
///
/// # Errors
/// When it is no such table.
pub(crate) fn open_indices(path: &Path) -> Result<ArrowTable, SourceError> {
    let choose = |path: &Path, columns: &Columns| -> Result<Option<usize>, SourceError> {
        match columns.list.as_slice() {
            [one] if one.name == "indices" && one.kind == ColumnKind::Int(IntType::U64) => Ok(Some(0)),
            _ => Err(SourceError::corrupt(
                path,
                format!(
                    "is no indices table: one is a single column indices: uint64, here is {}",
                    columns.describe()
                ),
            )),
        }
    };
    let files = open_files(
        &[Shard {
            path: path.to_owned(),
            expected_rows: None,
        }],
        &choose,
    )?;
    if files.iter().any(|f| f.layout.compression.is_some()) {
        return Err(SourceError::corrupt(
            path,
            "this indices table is compressed; datasets writes it uncompressed",
        ));
    }
    ArrowTable::new(files)
}
