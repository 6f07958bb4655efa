//! Decodes the token column of parquet files, page by page.

use std::fs::File;
use std::path::{Path, PathBuf};

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Schema};

use super::sink::RowSink;
use super::{Plan, guarded};
use crate::source::SourceError;
use crate::source::contents::{ColumnInfo, FileContents};
use crate::source::dirs::did_you_mean;
use crate::source::int_tokens::IntType;

/// Rows decoded at a time: with rows of 32k tokens about 16 MB.
const READ_ROWS: usize = 128;

fn builder(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, SourceError> {
    let file = File::open(path).map_err(|e| SourceError::io(path, "open", e))?;
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, ArrowReaderOptions::new())
        .map_err(|e| SourceError::corrupt(path, format!("is no readable parquet file: {e}")))
}

/// Columns as `name: type`.
fn describe(schema: &Schema) -> String {
    schema
        .fields()
        .iter()
        .map(|f| format!("{}: {}", f.name(), type_name(f.data_type())))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Columns and rows of a file.
///
/// # Errors
/// [`SourceError::Corrupt`] when it is no readable parquet file.
pub(crate) fn columns(path: &Path) -> Result<FileContents, SourceError> {
    let builder = guarded(path, || builder(path))?;
    let columns = builder.schema().fields().iter().map(|f| ColumnInfo {
        name: f.name().clone(),
        type_name: type_name(f.data_type()),
        can_hold_tokens: int_of(f.data_type()).is_some(),
    });
    Ok(FileContents {
        format: "parquet",
        rows: rows_of(path, &builder)?,
        record_batches: None,
        compression: None,
        columns: columns.collect(),
        tokens: None,
        null: None,
    })
}

fn rows_of(path: &Path, builder: &ParquetRecordBatchReaderBuilder<File>) -> Result<u64, SourceError> {
    let rows = builder.metadata().file_metadata().num_rows();
    u64::try_from(rows).map_err(|_| SourceError::corrupt(path, format!("its metadata says {rows} rows")))
}

/// Checks that all files have the column with one type, and counts their rows.
pub(super) fn plan(paths: &[PathBuf], column: &str) -> Result<Plan, SourceError> {
    let mut plan = Plan {
        token_type: String::new(),
        rows: Vec::with_capacity(paths.len()),
    };
    for path in paths {
        let builder = builder(path)?;
        let schema = builder.schema();
        let Ok(field) = schema.field_with_name(column) else {
            let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            return Err(SourceError::NotFound(format!(
                "{} has no column \"{column}\"; it has {}{}",
                path.display(),
                describe(schema),
                did_you_mean(column, &names)
            )));
        };
        let name = type_name(field.data_type());
        if int_of(field.data_type()).is_none() {
            return Err(SourceError::NotFound(format!(
                "{}: column \"{column}\" is {name}, from row 0 on; token ids are a list of integers; the columns are {}",
                path.display(),
                describe(schema)
            )));
        }
        if plan.token_type.is_empty() {
            plan.token_type = name;
        } else if plan.token_type != name {
            return Err(SourceError::corrupt(
                path,
                format!(
                    "its column \"{column}\" is {name}, but {} in {}",
                    plan.token_type,
                    paths[0].display()
                ),
            ));
        }
        plan.rows.push(rows_of(path, &builder)?);
    }
    Ok(plan)
}

/// Feeds every row of the column to the sink.
pub(super) fn decode(path: &Path, sink: &mut RowSink<'_>) -> Result<(), SourceError> {
    let builder = builder(path)?;
    let index = builder
        .schema()
        .index_of(sink.column())
        .map_err(|e| SourceError::corrupt(path, e.to_string()))?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), [index]);
    let reader = builder
        .with_projection(mask)
        .with_batch_size(READ_ROWS)
        .build()
        .map_err(|e| SourceError::corrupt(path, format!("cannot be decoded: {e}")))?;
    for batch in reader {
        let batch = batch.map_err(|e| SourceError::corrupt(path, format!("cannot be decoded: {e}")))?;
        push_rows(path, batch.column(0), sink)?;
    }
    Ok(())
}

/// Integer type of a list column.
fn int_of(list: &DataType) -> Option<IntType> {
    let item = match list {
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::FixedSizeList(f, _)
        | DataType::ListView(f)
        | DataType::LargeListView(f) => f.data_type(),
        _ => return None,
    };
    Some(match item {
        DataType::Int8 => IntType::I8,
        DataType::UInt8 => IntType::U8,
        DataType::Int16 => IntType::I16,
        DataType::UInt16 => IntType::U16,
        DataType::Int32 => IntType::I32,
        DataType::UInt32 => IntType::U32,
        DataType::Int64 => IntType::I64,
        DataType::UInt64 => IntType::U64,
        _ => return None,
    })
}

/// The common types as pyarrow prints them.
fn type_name(t: &DataType) -> String {
    let item = |f: &arrow_schema::Field| {
        let not_null = if f.is_nullable() { "" } else { " not null" };
        format!("{}: {}{not_null}", f.name(), type_name(f.data_type()))
    };
    match t {
        DataType::List(f) => format!("list<{}>", item(f)),
        DataType::LargeList(f) => format!("large_list<{}>", item(f)),
        DataType::ListView(f) => format!("list_view<{}>", item(f)),
        DataType::LargeListView(f) => format!("large_list_view<{}>", item(f)),
        DataType::FixedSizeList(f, n) => format!("fixed_size_list<{}>[{n}]", item(f)),
        DataType::Utf8 => "string".to_owned(),
        DataType::Float16 => "halffloat".to_owned(),
        DataType::Float32 => "float".to_owned(),
        DataType::Float64 => "double".to_owned(),
        DataType::Boolean => "bool".to_owned(),
        other => other.to_string().to_lowercase(),
    }
}

fn push_rows(path: &Path, array: &ArrayRef, sink: &mut RowSink<'_>) -> Result<(), SourceError> {
    for row in 0..array.len() {
        if array.is_null(row) {
            return Err(sink.null("the row is null".to_owned()));
        }
        let values = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().value(row),
            DataType::LargeList(_) => array.as_list::<i64>().value(row),
            DataType::FixedSizeList(..) => array.as_fixed_size_list().value(row),
            DataType::ListView(_) => array.as_list_view::<i32>().value(row),
            DataType::LargeListView(_) => array.as_list_view::<i64>().value(row),
            other => return Err(SourceError::corrupt(path, format!("decoded to {other}"))),
        };
        if values.null_count() > 0 {
            let at = (0..values.len()).find(|&i| values.is_null(i)).unwrap_or(0);
            return Err(sink.null(format!("the value at position {at} is null")));
        }
        match int_of(array.data_type()) {
            Some(IntType::I8) => push::<Int8Type>(&values, IntType::I8, sink),
            Some(IntType::U8) => push::<UInt8Type>(&values, IntType::U8, sink),
            Some(IntType::I16) => push::<Int16Type>(&values, IntType::I16, sink),
            Some(IntType::U16) => push::<UInt16Type>(&values, IntType::U16, sink),
            Some(IntType::I32) => push::<Int32Type>(&values, IntType::I32, sink),
            Some(IntType::U32) => push::<UInt32Type>(&values, IntType::U32, sink),
            Some(IntType::I64) => push::<Int64Type>(&values, IntType::I64, sink),
            Some(IntType::U64) => push::<UInt64Type>(&values, IntType::U64, sink),
            None => {
                return Err(SourceError::corrupt(
                    path,
                    "decoded to something else than integers",
                ));
            }
        }?;
    }
    Ok(())
}

fn push<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    int: IntType,
    sink: &mut RowSink<'_>,
) -> Result<(), SourceError> {
    let values = values.as_primitive::<T>().values();
    // SAFETY: the slice holds exactly these values, in native little-endian form.
    unsafe { sink.push(int, values.as_ptr().cast(), values.len()) }
}
