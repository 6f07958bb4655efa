//! Opens the token column of every file of a split, decoding first what cannot be mapped.

use std::path::{Path, PathBuf};

use super::Progress;
use crate::source::SourceError;
use crate::source::decode::{self, Decoded};
use crate::source::dirs::{DatasetKind, SplitFiles, did_you_mean};
use crate::source::ipc::{Choose, ColumnKind, Columns};
use crate::source::options::SourceOptions;
use crate::source::table::{OpenFile, Shard, open_files};

/// Opens the token column of every file of a split, decoding first what cannot be mapped.
pub(super) fn open_tokens(
    kind: DatasetKind,
    split: &SplitFiles,
    options: &SourceOptions,
    progress: Progress<'_>,
    warnings: &mut Vec<String>,
) -> Result<(Vec<OpenFile>, String), SourceError> {
    let choose = |path: &Path, columns: &Columns| choose_tokens(path, columns, &options.column).map(Some);
    let paths: Vec<PathBuf> = split.shards.iter().map(|s| s.path.clone()).collect();
    let decoded = if kind == DatasetKind::Parquet {
        decode::parquet_files(&paths, options, progress)?
    } else {
        let opened = open_files(&split.shards, &choose)?;
        let Some(codec) = opened.iter().find_map(|f| f.layout.compression) else {
            let token_type = type_of(&opened);
            return Ok((opened, token_type));
        };
        let token_type = type_of(&opened);
        let decoded = decode::compressed_arrow(&paths, options, progress)?;
        warnings.push(format!(
            "{}: record batches are compressed ({codec}) and cannot be mapped; read from the decoded copy {}",
            split.dir.display(),
            decoded.dir.display()
        ));
        return open_decoded(&decoded, &choose).map(|opened| (opened, token_type));
    };
    let token_type = decoded.token_type.clone();
    open_decoded(&decoded, &choose).map(|opened| (opened, token_type))
}

pub(super) fn open_decoded(decoded: &Decoded, choose: Choose<'_>) -> Result<Vec<OpenFile>, SourceError> {
    let shards: Vec<Shard> = decoded
        .files
        .iter()
        .map(|(path, rows)| Shard {
            path: path.clone(),
            expected_rows: Some((*rows, decode::MANIFEST.to_owned())),
        })
        .collect();
    open_files(&shards, choose)
}

pub(super) fn type_of(files: &[OpenFile]) -> String {
    files
        .first()
        .and_then(|f| f.layout.columns.list.get(f.layout.column?))
        .map_or(String::new(), |c| c.type_name.clone())
}

/// The token column called `name`.
pub(super) fn choose_tokens(path: &Path, columns: &Columns, name: &str) -> Result<usize, SourceError> {
    let usable = || -> Vec<String> {
        columns
            .list
            .iter()
            .filter(|c| matches!(c.kind, ColumnKind::Tokens(_)))
            .map(|c| format!("\"{}\" ({})", c.name, c.type_name))
            .collect()
    };
    let Some(index) = columns.find(name).map_err(|e| SourceError::corrupt(path, e))? else {
        let names: Vec<&str> = columns.list.iter().map(|c| c.name.as_str()).collect();
        return Err(SourceError::NotFound(format!(
            "{} has no column \"{name}\"; it has {}{}",
            path.display(),
            columns.describe(),
            did_you_mean(name, &names)
        )));
    };
    let column = &columns.list[index];
    if matches!(column.kind, ColumnKind::Tokens(_)) {
        return Ok(index);
    }
    let usable = usable();
    Err(SourceError::NotFound(format!(
        "{}: column \"{name}\" is {}, from row 0 on; token ids are a list of integers{}",
        path.display(),
        column.type_name,
        if usable.is_empty() {
            format!(", and no column here is: {}", columns.describe())
        } else {
            format!(", as in {}", usable.join(", "))
        }
    )))
}
