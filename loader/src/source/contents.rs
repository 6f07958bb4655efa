//! A look into dataset files without opening the dataset: what `inspect` shows.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::SourceError;
use super::decode::parquet_columns;
use super::dirs::{DatasetKind, SplitFiles, check_present, choose_split, survey};
use super::hf::RowLengths;
use super::hf::indices::open_indices;
use super::ipc::{Column, ColumnKind, Columns, IpcFormat};
use super::options::DEFAULT_COLUMN;
use super::table::{Shard, open_file};

/// One column of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type as pyarrow prints it.
    #[serde(rename = "type")]
    pub type_name: String,
    /// It is a list of integers, so token rows can be read from it.
    pub can_hold_tokens: bool,
}

/// What a path holds.
pub(crate) struct Place {
    pub(crate) kind: DatasetKind,
    pub(crate) splits: Vec<SplitContents>,
}

/// One split's files.
pub(crate) struct SplitContents {
    pub(crate) name: Option<String>,
    pub(crate) dir: PathBuf,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) strays: Vec<PathBuf>,
    pub(crate) caches: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
    shards: Vec<Shard>,
    missing: Option<String>,
}

/// One file's structure.
pub(crate) struct FileContents {
    pub(crate) format: &'static str,
    pub(crate) rows: u64,
    pub(crate) record_batches: Option<u64>,
    pub(crate) compression: Option<&'static str>,
    pub(crate) columns: Vec<ColumnInfo>,
    /// The token column and its row lengths.
    pub(crate) tokens: Option<(String, RowLengths)>,
    /// A sentence about the first null.
    pub(crate) null: Option<String>,
}

/// What a `cache-*.arrow` file is.
pub(crate) enum CacheFile {
    Indices { rows: u64, largest: Option<u64> },
    Table { rows: u64, columns: String },
}

/// Finds out what `path` holds, all splits or one.
///
/// # Errors
/// As opening does, but for files that are missing or unreadable.
pub(crate) fn look(path: &Path, split: Option<&str>) -> Result<Place, SourceError> {
    let survey = survey(path)?;
    let splits = match split {
        Some(_) => vec![choose_split(&survey, split)?],
        None => survey.splits.iter().collect(),
    };
    let splits = splits.into_iter().map(contents_of).collect();
    Ok(Place {
        kind: survey.kind,
        splits,
    })
}

fn contents_of(split: &SplitFiles) -> SplitContents {
    SplitContents {
        name: split.name.clone(),
        dir: split.dir.clone(),
        paths: split.shards.iter().map(|s| s.path.clone()).collect(),
        strays: split.strays.clone(),
        caches: split.caches.clone(),
        warnings: split.warnings.clone(),
        shards: split.shards.clone(),
        missing: check_present(split).err().map(|e| e.to_string()),
    }
}

impl SplitContents {
    /// Reads the structure of each file; the lengths counted are those of `column`.
    pub(crate) fn read_files(
        &self,
        kind: DatasetKind,
        column: Option<&str>,
    ) -> Vec<(PathBuf, Result<FileContents, SourceError>)> {
        let mut said = false;
        self.shards
            .iter()
            .map(|shard| {
                let contents = if !shard.path.exists() {
                    // One sentence about all missing files, then only their names.
                    let text = self
                        .missing
                        .clone()
                        .filter(|_| !std::mem::replace(&mut said, true));
                    let text = text.unwrap_or_else(|| format!("{} is missing", shard.path.display()));
                    Err(SourceError::NotFound(text))
                } else if kind == DatasetKind::Parquet {
                    parquet_columns(&shard.path)
                } else {
                    arrow_contents(shard, column)
                };
                (shard.path.clone(), contents)
            })
            .collect()
    }
}

/// The column whose rows count: the one named, else `input_ids`, else the first that can hold tokens.
fn token_column(columns: &Columns, name: Option<&str>) -> Option<usize> {
    let usable = |c: &Column| matches!(c.kind, ColumnKind::Tokens(_));
    let named = |name: &str| columns.list.iter().position(|c| c.name == name && usable(c));
    match name {
        Some(name) => named(name),
        None => named(DEFAULT_COLUMN).or_else(|| columns.list.iter().position(usable)),
    }
}

fn arrow_contents(shard: &Shard, column: Option<&str>) -> Result<FileContents, SourceError> {
    let opened = open_file(shard, &|_, columns| Ok(token_column(columns, column)))?;
    let layout = opened.layout;
    let name = layout
        .column
        .and_then(|i| layout.columns.list.get(i))
        .map(|c| c.name.clone());
    let null = layout.first_null.map(|null| {
        format!(
            "{}: row {} of this file, column \"{}\": {}",
            shard.path.display(),
            null.row,
            name.as_deref().unwrap_or_default(),
            null.what
        )
    });
    let lengths = RowLengths {
        min: layout.lengths.min,
        max: layout.lengths.max,
        total: layout.lengths.total,
    };
    Ok(FileContents {
        format: match layout.format {
            IpcFormat::Stream => "arrow stream",
            IpcFormat::File => "arrow file",
        },
        rows: layout.rows,
        record_batches: Some(layout.num_batches),
        compression: layout.compression,
        columns: columns_of(&layout.columns),
        tokens: name
            .filter(|_| layout.compression.is_none())
            .map(|name| (name, lengths)),
        null,
    })
}

fn columns_of(columns: &Columns) -> Vec<ColumnInfo> {
    columns
        .list
        .iter()
        .map(|c| ColumnInfo {
            name: c.name.clone(),
            type_name: c.type_name.clone(),
            can_hold_tokens: matches!(c.kind, ColumnKind::Tokens(_)),
        })
        .collect()
}

/// Finds out what a cache file is.
///
/// # Errors
/// When it is no readable Arrow file.
pub(crate) fn cache_file(path: &Path) -> Result<CacheFile, SourceError> {
    if let Ok(table) = open_indices(path) {
        let rows = table.num_rows();
        let mut largest = None;
        for i in 0..rows {
            largest = largest.max(Some(table.read_u64(i)?));
        }
        return Ok(CacheFile::Indices { rows, largest });
    }
    let shard = Shard {
        path: path.to_owned(),
        expected_rows: None,
    };
    let opened = open_file(&shard, &|_, _| Ok(None))?;
    Ok(CacheFile::Table {
        rows: opened.layout.rows,
        columns: opened.layout.columns.describe(),
    })
}
