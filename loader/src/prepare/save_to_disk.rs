//! Writes a token dataset as `Dataset.save_to_disk` of Hugging Face datasets leaves it.
//!
//! Reproduces datasets 5.2.0: Arrow streams `data-0000i-of-0000k.arrow` of at most about 500 MB, the first `n % k` of them
//! one row longer, a column `input_ids` of int32 lists, `dataset_info.json` and `state.json`. `load_from_disk` reads it.
//!
//! The folder is written beside its target and renamed when it is complete. Memory: one block of 1000 rows.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Int32Array, ListArray, RecordBatch};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use serde_json::json;

use super::{PrepareError, Progress};
use crate::atomic::folder_of;

/// Bytes after which datasets starts another file.
const SHARD_BYTES: u64 = 500_000_000;
/// Rows of a record batch, as datasets' writer cuts them.
const BLOCK: u64 = 1000;

/// Rows to write.
pub trait Rows: Sync {
    /// Number of rows.
    fn len(&self) -> u64;
    /// True without a row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Tokens of all rows.
    fn tokens(&self) -> u64;
    /// Appends row `i` to `out`.
    ///
    /// # Errors
    /// A row that cannot be read.
    fn push(&self, i: u64, out: &mut Vec<i32>) -> Result<(), PrepareError>;
}

/// Files datasets would write: one for each 500 MB begun, and at least `num_proc`.
pub fn num_shards(rows: u64, tokens: u64, num_proc: u64) -> u64 {
    let bytes = tokens * 4 + (rows + rows.div_ceil(BLOCK)) * 4;
    (bytes / SHARD_BYTES + 1).max(num_proc)
}

/// Writes `rows` into the new folder `target`, by way of the folder `work`. What stands in either is replaced, in
/// `target` only once all is written.
///
/// # Errors
/// Rows that cannot be read and files that cannot be written.
pub fn write(
    rows: &dyn Rows,
    shards: u64,
    work: &Path,
    target: &Path,
    progress: Progress<'_>,
) -> Result<Vec<String>, PrepareError> {
    let shards = shards.max(1);
    if work.exists() {
        fs::remove_dir_all(work).map_err(|e| PrepareError::io(work, "remove", e))?;
    }
    fs::create_dir(work).map_err(|e| PrepareError::io(work, "create the folder", e))?;
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let info = json!({"info": {"features": {"input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"}}}});
    let schema = Arc::new(
        Schema::new(vec![Field::new(
            "input_ids",
            DataType::List(Arc::clone(&item)),
            true,
        )])
        .with_metadata(HashMap::from([("huggingface".to_owned(), info.to_string())])),
    );
    let (each, longer) = (rows.len() / shards, rows.len() % shards);
    let (mut row, mut files) = (0, Vec::new());
    let mut tokens = Vec::new();
    for shard in 0..shards {
        let name = format!("data-{shard:05}-of-{shards:05}.arrow");
        let path = work.join(&name);
        let fail = |e: arrow_schema::ArrowError| PrepareError::io(&path, "write", std::io::Error::other(e));
        let file = File::create(&path).map_err(|e| PrepareError::io(&path, "create", e))?;
        let mut writer =
            StreamWriter::try_new(BufWriter::with_capacity(1 << 20, file), &schema).map_err(fail)?;
        let end = row + each + u64::from(shard < longer);
        while row < end {
            let stop = (row + BLOCK).min(end);
            tokens.clear();
            let mut lengths = Vec::with_capacity((stop - row) as usize);
            for i in row..stop {
                let before = tokens.len();
                rows.push(i, &mut tokens)?;
                lengths.push(tokens.len() - before);
            }
            if i32::try_from(tokens.len()).is_err() {
                return Err(PrepareError::Options(format!(
                    "rows {row} to {stop} hold {} tokens, more than one block of a list column can",
                    tokens.len()
                )));
            }
            let list = ListArray::new(
                Arc::clone(&item),
                OffsetBuffer::from_lengths(lengths),
                Arc::new(Int32Array::from(tokens.clone())),
                None,
            );
            let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(list)]).map_err(fail)?;
            writer.write(&batch).map_err(fail)?;
            row = stop;
            if !progress("writing", row, rows.len()) {
                return Err(PrepareError::Stopped);
            }
        }
        writer.finish().map_err(fail)?;
        let file = writer.into_inner().map_err(fail)?;
        let file = file
            .into_inner()
            .map_err(|e| PrepareError::io(&path, "write", e.into_error()))?;
        file.sync_all().map_err(|e| PrepareError::io(&path, "sync", e))?;
        files.push(name);
    }
    write_json(
        &work.join("dataset_info.json"),
        &json!({
            "citation": "",
            "description": "",
            "features": {"input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"}},
            "homepage": "",
            "license": "",
        }),
    )?;
    // Any name will do for datasets; this one is the same for the same content of the same files.
    let mut hasher = blake3::Hasher::new();
    for name in &files {
        let path = work.join(name);
        let mut file = File::open(&path).map_err(|e| PrepareError::io(&path, "open", e))?;
        hasher
            .update_reader(&mut file)
            .map_err(|e| PrepareError::io(&path, "read", e))?;
    }
    write_json(
        &work.join("state.json"),
        &json!({
            "_data_files": files.iter().map(|name| json!({"filename": name})).collect::<Vec<_>>(),
            "_fingerprint": hasher.finalize().to_hex()[..16],
            "_format_columns": null,
            "_format_kwargs": {},
            "_format_type": null,
            "_output_all_columns": false,
            "_split": null,
        }),
    )?;
    // What is replaced stays until the whole of what replaces it is there.
    if target.exists() {
        fs::remove_dir_all(target).map_err(|e| PrepareError::io(target, "replace", e))?;
    }
    fs::rename(work, target).map_err(|e| PrepareError::io(target, "rename into place", e))?;
    let parent = folder_of(target);
    File::open(parent)
        .and_then(|f| f.sync_all())
        .map_err(|e| PrepareError::io(parent, "sync", e))?;
    Ok(files)
}

fn write_json(path: &Path, value: &serde_json::Value) -> Result<(), PrepareError> {
    let text = serde_json::to_vec_pretty(value).unwrap_or_default();
    crate::atomic::write(path, &text).map_err(|e| PrepareError::io(path, "write", e))
}
