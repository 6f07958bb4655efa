//! Makes small datasets on disk, as `datasets` lays them out, for tests that need broken or unusual ones.

use std::path::Path;
use std::sync::Arc;

use arrow_array::types::{
    Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, LargeListArray, LargeListViewArray, ListArray,
    ListViewArray, PrimitiveArray, RecordBatch, UInt64Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{DataType, Field, Schema};
use serde_json::json;

/// List layouts of Arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// 32-bit offsets.
    List,
    /// 64-bit offsets.
    LargeList,
    /// All rows of the first row's length.
    FixedSizeList,
    /// 32-bit offsets and sizes.
    ListView,
    /// 64-bit offsets and sizes.
    LargeListView,
}

/// `n` rows of `len` tokens below `vocab`, different for each row.
pub fn uniform_rows(n: usize, len: usize, vocab: i64) -> Vec<Vec<i64>> {
    (0..n)
        .map(|r| {
            (0..len)
                .map(|i| ((r * 7919 + i * 104_729 + 13) as i64) % vocab)
                .collect()
        })
        .collect()
}

/// Integers of any type; values are cast as `as` does.
///
/// # Panics
/// For a type that is no integer.
pub fn ints(values: &[i64], int: &DataType, nulls: Option<NullBuffer>) -> ArrayRef {
    macro_rules! of {
        ($t:ty, $n:ty) => {
            Arc::new(PrimitiveArray::<$t>::new(
                values.iter().map(|&v| v as $n).collect(),
                nulls,
            ))
        };
    }
    match int {
        DataType::Int8 => of!(Int8Type, i8),
        DataType::Int16 => of!(Int16Type, i16),
        DataType::Int32 => of!(Int32Type, i32),
        DataType::Int64 => of!(Int64Type, i64),
        DataType::UInt8 => of!(UInt8Type, u8),
        DataType::UInt16 => of!(UInt16Type, u16),
        DataType::UInt32 => of!(UInt32Type, u32),
        DataType::UInt64 => of!(UInt64Type, u64),
        DataType::Float32 => Arc::new(Float32Array::from_iter_values(values.iter().map(|&v| v as f32))),
        other => panic!("{other} is no integer type"),
    }
}

/// A list column; `row_nulls` and `value_nulls` are validity bitmaps over rows and values.
///
/// # Panics
/// When the parts do not fit each other.
pub fn list(
    rows: &[Vec<i64>],
    layout: Layout,
    int: &DataType,
    row_nulls: Option<Vec<bool>>,
    value_nulls: Option<Vec<bool>>,
) -> ArrayRef {
    let flat: Vec<i64> = rows.iter().flatten().copied().collect();
    let values = ints(&flat, int, value_nulls.map(NullBuffer::from));
    let item = Arc::new(Field::new("item", int.clone(), true));
    let nulls = row_nulls.map(NullBuffer::from);
    let lens = || rows.iter().map(Vec::len);
    let starts = || {
        rows.iter().scan(0usize, |at, row| {
            let here = *at;
            *at += row.len();
            Some(here)
        })
    };
    match layout {
        Layout::List => Arc::new(ListArray::new(
            item,
            OffsetBuffer::from_lengths(lens()),
            values,
            nulls,
        )),
        Layout::LargeList => Arc::new(LargeListArray::new(
            item,
            OffsetBuffer::from_lengths(lens()),
            values,
            nulls,
        )),
        Layout::FixedSizeList => {
            let len = rows.first().map_or(0, Vec::len) as i32;
            Arc::new(FixedSizeListArray::new(item, len, values, nulls))
        }
        Layout::ListView => Arc::new(ListViewArray::new(
            item,
            starts().map(|s| s as i32).collect::<ScalarBuffer<i32>>(),
            lens().map(|s| s as i32).collect::<ScalarBuffer<i32>>(),
            values,
            nulls,
        )),
        Layout::LargeListView => Arc::new(LargeListViewArray::new(
            item,
            starts().map(|s| s as i64).collect::<ScalarBuffer<i64>>(),
            lens().map(|s| s as i64).collect::<ScalarBuffer<i64>>(),
            values,
            nulls,
        )),
    }
}

/// A batch with the columns `id` (int64) and `input_ids`.
///
/// # Panics
/// When the array is no column of a batch.
pub fn batch(first_id: i64, tokens: ArrayRef) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(
        (0..tokens.len() as i64).map(|i| first_id + i),
    ));
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("input_ids", tokens.data_type().clone(), true),
    ]);
    RecordBatch::try_new(Arc::new(schema), vec![ids, tokens]).expect("columns of one length")
}

/// Batches of at most `chunk` rows of a list column without nulls.
pub fn batches(rows: &[Vec<i64>], layout: Layout, int: &DataType, chunk: usize) -> Vec<RecordBatch> {
    let all = rows.chunks(chunk).enumerate();
    all.map(|(i, rows)| batch((i * chunk) as i64, list(rows, layout, int, None, None)))
        .collect()
}

/// An Arrow stream of the batches.
///
/// # Panics
/// When there is no batch or they differ in schema.
pub fn stream(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).expect("a schema");
    batches
        .iter()
        .for_each(|b| writer.write(b).expect("a batch of the schema"));
    writer.finish().expect("memory");
    writer.into_inner().expect("memory")
}

/// An Arrow file of the batches.
///
/// # Panics
/// As [`stream`].
pub fn file(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batches[0].schema()).expect("a schema");
    batches
        .iter()
        .for_each(|b| writer.write(b).expect("a batch of the schema"));
    writer.finish().expect("memory");
    writer.into_inner().expect("memory")
}

/// An indices table as `Dataset.shuffle` leaves it.
///
/// # Panics
/// Never for a writable path.
pub fn write_indices(path: &Path, indices: &[u64]) {
    let column: ArrayRef = Arc::new(UInt64Array::from(indices.to_vec()));
    let schema = Schema::new(vec![Field::new("indices", DataType::UInt64, true)]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![column]).expect("one column");
    std::fs::write(path, stream(&[batch])).expect("a writable path");
}

/// Writes a folder as `Dataset.save_to_disk` does, one shard for each list of batches.
///
/// # Panics
/// When the folder cannot be written.
pub fn save_to_disk(dir: &Path, shards: &[Vec<RecordBatch>], split: Option<&str>) {
    std::fs::create_dir_all(dir).expect("a writable folder");
    let name = |i: usize| format!("data-{i:05}-of-{:05}.arrow", shards.len());
    for (i, shard) in shards.iter().enumerate() {
        std::fs::write(dir.join(name(i)), stream(shard)).expect("a writable folder");
    }
    let files: Vec<_> = (0..shards.len()).map(|i| json!({"filename": name(i)})).collect();
    let state = json!({
        "_data_files": files, "_fingerprint": "0123456789abcdef", "_format_columns": null, "_format_kwargs": {},
        "_format_type": null, "_output_all_columns": false, "_split": split,
    });
    let info = json!({"citation": "", "description": "", "features": {}, "homepage": "", "license": ""});
    write_json(&dir.join("state.json"), &state);
    write_json(&dir.join("dataset_info.json"), &info);
}

/// Saves rows of int32 lists in `shards` shards of near equal length, batches of 10 rows.
///
/// # Panics
/// As [`save_to_disk`].
pub fn save_rows(dir: &Path, rows: &[Vec<i64>], shards: usize) {
    let per = rows.len().div_ceil(shards).max(1);
    let parts: Vec<_> = rows
        .chunks(per)
        .map(|r| batches(r, Layout::List, &DataType::Int32, 10))
        .collect();
    save_to_disk(dir, &parts, None);
}

/// Writes a cache folder of `load_dataset`: per split, the rows of each shard.
///
/// # Panics
/// When the folder cannot be written.
pub fn save_cache(dir: &Path, name: &str, splits: &[(&str, Vec<Vec<Vec<i64>>>)]) {
    std::fs::create_dir_all(dir).expect("a writable folder");
    let mut declared = serde_json::Map::new();
    for (split, shards) in splits {
        for (i, rows) in shards.iter().enumerate() {
            let file = if shards.len() > 1 {
                format!("{name}-{split}-{i:05}-of-{:05}.arrow", shards.len())
            } else {
                format!("{name}-{split}.arrow")
            };
            let bytes = stream(&batches(rows, Layout::List, &DataType::Int32, 10));
            std::fs::write(dir.join(file), bytes).expect("a writable folder");
        }
        let lengths: Vec<usize> = shards.iter().map(Vec::len).collect();
        let mut entry =
            json!({"name": split, "num_examples": lengths.iter().sum::<usize>(), "dataset_name": name});
        if lengths.len() > 1 {
            entry["shard_lengths"] = json!(lengths);
        }
        declared.insert((*split).to_owned(), entry);
    }
    let info =
        json!({"builder_name": name, "dataset_name": name, "config_name": "default", "splits": declared});
    write_json(&dir.join("dataset_info.json"), &info);
}

/// Writes JSON.
///
/// # Panics
/// When the file cannot be written.
pub fn write_json(path: &Path, value: &serde_json::Value) {
    std::fs::write(path, value.to_string()).expect("a writable folder");
}
