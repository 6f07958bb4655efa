//! What a path holds, for people and programs: kind, splits, shards, columns, row lengths, indices tables,
//! oddities.
//!
//! Reads what opening reads (metadata, batch headers, list offsets) plus, when a fingerprint is asked for,
//! the bytes its mode takes. Nothing is decoded, applied or written. What is wrong with a shard is reported
//! beside the others instead of ending the inspection.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::source::contents::{self, FileContents};
use crate::source::options::DEFAULT_COLUMN;
use crate::source::{ColumnInfo, DatasetFingerprint, DatasetKind, FingerprintMode, RowLengths, SourceError};

/// What to look at.
#[derive(Debug, Clone, Default)]
pub struct InspectOptions {
    /// Only this split.
    pub split: Option<String>,
    /// Column whose row lengths are counted; by default `input_ids`, else the first list of integers.
    pub column: Option<String>,
    /// Compute a fingerprint of each split's files.
    pub fingerprint: Option<FingerprintMode>,
}

/// What a path holds.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// The path inspected.
    pub path: PathBuf,
    /// Kind of place.
    pub kind: DatasetKind,
    /// In the layout's own sequence.
    pub splits: Vec<Split>,
    /// A command that streams the (first) split, when it can be streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggested_command: Option<String>,
}

/// One split, or the whole where there are none.
#[derive(Debug, Clone, Serialize)]
pub struct Split {
    /// Its name, where the layout has splits.
    pub name: Option<String>,
    /// Rows of the readable files.
    pub rows: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Files in the sequence in which they are read.
    pub files: Vec<Shard>,
    /// Columns of the first readable file.
    pub columns: Vec<ColumnInfo>,
    /// Row lengths of the token column; `None` without one, and for parquet or compressed files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenColumn>,
    /// Indices tables found; never applied unless named with `--indices`.
    pub indices: Vec<IndicesTable>,
    /// `cache-*.arrow` files that are tables of their own, results of `map` for instance.
    pub cached_tables: Vec<CachedTable>,
    /// Arrow files there that do not belong to the dataset.
    pub strays: Vec<String>,
    /// Things to know.
    pub warnings: Vec<String>,
    /// Things that keep it from being opened.
    pub problems: Vec<String>,
    /// Fingerprint of the files, when asked for and all are readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<DatasetFingerprint>,
}

/// One file.
#[derive(Debug, Clone, Serialize)]
pub struct Shard {
    /// Name below the split's folder.
    pub file: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Rows, `None` when it cannot be read.
    pub rows: Option<u64>,
    /// Record batches (Arrow only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_batches: Option<u64>,
    /// `arrow stream`, `arrow file` or `parquet`.
    pub format: &'static str,
    /// Codec of compressed record batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<&'static str>,
}

/// Row lengths of a column.
#[derive(Debug, Clone, Serialize)]
pub struct TokenColumn {
    /// The column.
    pub column: String,
    /// Shortest, longest and summed length.
    #[serde(flatten)]
    pub lengths: RowLengths,
    /// All rows have one length.
    pub uniform: bool,
}

/// An indices table beside the data.
#[derive(Debug, Clone, Serialize)]
pub struct IndicesTable {
    /// Its name.
    pub file: String,
    /// Samples it selects.
    pub rows: u64,
    /// Largest row it points to.
    pub largest: Option<u64>,
    /// It points inside this split.
    pub fits: bool,
}

/// A table in a cache file.
#[derive(Debug, Clone, Serialize)]
pub struct CachedTable {
    /// Its name.
    pub file: String,
    /// Its rows.
    pub rows: u64,
    /// `name: type` of its columns.
    pub columns: String,
}

/// Looks at `path`. `progress` is told how many bytes were hashed since it was last called.
///
/// # Errors
/// [`SourceError`] when the path is no dataset at all, or has no such split.
pub fn inspect(
    path: &Path,
    options: &InspectOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Inspection, SourceError> {
    let place = contents::look(path, options.split.as_deref())?;
    let mut splits = Vec::new();
    for split in &place.splits {
        splits.push(inspect_split(place.kind, split, options, progress)?);
    }
    let suggested_command = splits.iter().find_map(|s| command(path, place.kind, s, options));
    Ok(Inspection {
        path: path.to_owned(),
        kind: place.kind,
        splits,
        suggested_command,
    })
}

fn inspect_split(
    kind: DatasetKind,
    split: &contents::SplitContents,
    options: &InspectOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Split, SourceError> {
    let name_of = |path: &Path| {
        path.strip_prefix(&split.dir)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    let mut out = Split {
        name: split.name.clone(),
        rows: 0,
        bytes: 0,
        files: Vec::new(),
        columns: Vec::new(),
        tokens: None,
        indices: Vec::new(),
        cached_tables: Vec::new(),
        strays: split.strays.iter().map(|p| name_of(p)).collect(),
        warnings: split.warnings.clone(),
        problems: Vec::new(),
        fingerprint: None,
    };
    let mut lengths: Vec<(String, RowLengths)> = Vec::new();
    for (path, file) in split.read_files(kind, options.column.as_deref()) {
        let bytes = std::fs::metadata(&path).map(|m| m.len()).unwrap_or(0);
        out.bytes += bytes;
        let mut shard = Shard {
            file: name_of(&path),
            bytes,
            rows: None,
            record_batches: None,
            format: if kind == DatasetKind::Parquet {
                "parquet"
            } else {
                "arrow stream"
            },
            compression: None,
        };
        match file {
            Err(e) => out.problems.push(e.to_string()),
            Ok(file) => {
                let FileContents {
                    format,
                    rows,
                    record_batches,
                    compression,
                    columns,
                    tokens,
                    null,
                } = file;
                shard = Shard {
                    rows: Some(rows),
                    record_batches,
                    format,
                    compression,
                    ..shard
                };
                out.rows += rows;
                if out.columns.is_empty() {
                    out.columns = columns;
                } else if !same_columns(&out.columns, &columns) {
                    let first = out.files.first().map_or("", |f| f.file.as_str());
                    out.problems.push(format!(
                        "{}: its columns differ from those of {first}",
                        shard.file
                    ));
                }
                out.problems.extend(null);
                lengths.extend(tokens);
            }
        }
        out.files.push(shard);
    }
    if let Some((column, _)) = lengths.first() {
        let of_column = lengths.iter().filter(|(c, _)| c == column).map(|(_, l)| *l);
        let lengths = of_column.fold(
            RowLengths {
                min: u64::MAX,
                max: 0,
                total: 0,
            },
            |sum, l| RowLengths {
                min: sum.min.min(l.min),
                max: sum.max.max(l.max),
                total: sum.total + l.total,
            },
        );
        if lengths.min <= lengths.max {
            let uniform = lengths.min == lengths.max;
            out.tokens = Some(TokenColumn {
                column: column.clone(),
                lengths,
                uniform,
            });
        }
    }
    if out.rows == 0 && out.problems.is_empty() {
        out.problems.push("it has no rows".to_owned());
    }
    for path in &split.caches {
        match contents::cache_file(path) {
            Ok(contents::CacheFile::Indices { rows, largest }) => out.indices.push(IndicesTable {
                file: name_of(path),
                rows,
                largest,
                fits: largest.is_some_and(|l| l < out.rows),
            }),
            Ok(contents::CacheFile::Table { rows, columns }) => {
                out.cached_tables.push(CachedTable {
                    file: name_of(path),
                    rows,
                    columns,
                });
            }
            Err(e) => out
                .warnings
                .push(format!("{}: unreadable cache file: {e}", name_of(path))),
        }
    }
    if let Some(mode) = options.fingerprint
        && out.problems.is_empty()
    {
        let paths: Vec<PathBuf> = split.paths.clone();
        out.fingerprint = Some(DatasetFingerprint::compute(&paths, mode, progress)?);
    }
    Ok(out)
}

fn same_columns(a: &[ColumnInfo], b: &[ColumnInfo]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| (&a.name, &a.type_name) == (&b.name, &b.type_name))
}

fn command(path: &Path, kind: DatasetKind, split: &Split, options: &InspectOptions) -> Option<String> {
    if !split.problems.is_empty() || split.rows == 0 {
        return None;
    }
    let wanted = options.column.as_deref().unwrap_or(DEFAULT_COLUMN);
    let usable = |c: &&ColumnInfo| c.can_hold_tokens;
    let column = split
        .columns
        .iter()
        .find(|c| c.name == wanted && c.can_hold_tokens)
        .or_else(|| split.columns.iter().find(usable))?;
    let mut text = format!(
        "loader --order fla --cache-dir {}",
        quoted(&path.display().to_string())
    );
    if let Some(name) = split.name.as_ref().filter(|_| kind != DatasetKind::SaveToDisk) {
        text += &format!(" --split {}", quoted(name));
    }
    if column.name != DEFAULT_COLUMN {
        text += &format!(" --column {}", quoted(&column.name));
    }
    text += " --seed 42 --world-size 8 --micro-batch-size 4";
    match &split.tokens {
        Some(t) if t.uniform => text += &format!(" --seq-length {}", t.lengths.max),
        Some(t) => {
            text += &format!(
                " --seq-length {} --on-ragged pad --pad-id 0",
                t.lengths.max.max(1)
            )
        }
        None => text += " --seq-length 2048",
    }
    Some(text)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=@,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.path.display(), self.kind.describe())?;
        for split in &self.splits {
            write!(f, "{split}")?;
        }
        if let Some(command) = &self.suggested_command {
            writeln!(f, "\nto stream it:\n  {command}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        writeln!(f)?;
        if let Some(name) = &self.name {
            writeln!(f, "split {name}")?;
        }
        writeln!(
            f,
            "  rows      {} in {} files, {}",
            self.rows,
            self.files.len(),
            size(self.bytes)
        )?;
        let width = self
            .files
            .iter()
            .take(SHOWN)
            .map(|s| s.file.len())
            .max()
            .unwrap_or(0);
        for shard in self.files.iter().take(SHOWN) {
            let rows = shard
                .rows
                .map_or("unreadable".to_owned(), |n| format!("{n} rows"));
            write!(
                f,
                "    {:width$}  {rows}, {}, {}",
                shard.file,
                size(shard.bytes),
                shard.format
            )?;
            if let Some(n) = shard.record_batches {
                write!(f, ", {n} record batches")?;
            }
            match shard.compression {
                Some(codec) => writeln!(
                    f,
                    ", compressed ({codec}): decoded into a cache before it is read"
                )?,
                None => writeln!(f)?,
            }
        }
        if self.files.len() > SHOWN {
            writeln!(f, "    and {} more", self.files.len() - SHOWN)?;
        }
        for (i, column) in self.columns.iter().enumerate() {
            let label = if i == 0 { "columns" } else { "" };
            let note = if column.can_hold_tokens {
                "  (can hold tokens)"
            } else {
                ""
            };
            writeln!(f, "  {label:<9} {}: {}{note}", column.name, column.type_name)?;
        }
        if let Some(TokenColumn {
            column,
            lengths,
            uniform,
        }) = &self.tokens
        {
            write!(f, "  tokens    {} in {column}, ", lengths.total)?;
            if *uniform {
                writeln!(f, "every row has {}", lengths.max)?;
            } else {
                writeln!(f, "rows have {} to {}", lengths.min, lengths.max)?;
            }
        }
        for (i, table) in self.indices.iter().enumerate() {
            let label = if i == 0 { "indices" } else { "" };
            let note = if table.fits {
                ""
            } else {
                "; points outside this split"
            };
            writeln!(
                f,
                "  {label:<9} {}: {} rows (applied only with --indices){note}",
                table.file, table.rows
            )?;
        }
        for (i, table) in self.cached_tables.iter().enumerate() {
            let label = if i == 0 { "cached" } else { "" };
            writeln!(
                f,
                "  {label:<9} {}: {} rows of {}",
                table.file, table.rows, table.columns
            )?;
        }
        if let Some(print) = &self.fingerprint {
            writeln!(f, "  files     blake3 {} ({})", print.hash, print.mode)?;
        }
        for warning in &self.warnings {
            writeln!(f, "  warning   {warning}")?;
        }
        for problem in &self.problems {
            writeln!(f, "  problem   {problem}")?;
        }
        Ok(())
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    let units = [("GB", 1u64 << 30), ("MB", 1 << 20), ("kB", 1 << 10)];
    units
        .iter()
        .find(|(_, unit)| bytes >= *unit)
        .map_or(format!("{bytes} bytes"), |(name, unit)| {
            format!("{:.1} {name}", bytes as f64 / *unit as f64)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/data/a-b_1.2"), "/data/a-b_1.2");
        assert_eq!(quoted("my data"), "'my data'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn sizes_are_rounded() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(3 << 29), "1.5 GB");
    }
}
