//! What a path holds: which kind of dataset, its splits, the files of each in order, and what else lies
//! there.
//!
//! Reads directory listings and the small JSON files only. Facts about layouts are those of datasets 5.2.0:
//! `Dataset.save_to_disk` (`state.json` lists the shards), `DatasetDict.save_to_disk` (`dataset_dict.json`),
//! and the cache folder of `load_dataset` (`naming.filenames_for_dataset_split`). Row counts in the
//! `dataset_info.json` of a saved dataset may be those of an ancestor (`map` and `filter` leave them) and are
//! not used; in a cache folder they are the builder's own and every file is checked against them.

mod cache;
mod elsewhere;
mod listing;
mod parquet;
mod plain;
mod saved;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use cache::survey_cache;
use elsewhere::not_a_dataset;
use listing::{is_arrow, is_cache_file, is_saved_shard, list, no_such_path, not_found};
use plain::{survey_arrow_dir, survey_file};
use saved::{saved_dataset, survey_dict};

use super::SourceError;
use super::table::Shard;

pub(crate) use listing::did_you_mean;

/// Kinds of places token rows are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DatasetKind {
    /// A folder written by `Dataset.save_to_disk`.
    SaveToDisk,
    /// A folder written by `DatasetDict.save_to_disk`: one saved dataset per split.
    DatasetDict,
    /// A folder under the cache of `load_dataset`.
    HubCache,
    /// One Arrow IPC file, or a folder of them in name order.
    Arrow,
    /// One Parquet file, or a folder of them.
    Parquet,
}

impl DatasetKind {
    /// In words, for headers and messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::SaveToDisk => "a dataset saved with save_to_disk",
            Self::DatasetDict => "a DatasetDict saved with save_to_disk",
            Self::HubCache => "a cache folder of load_dataset",
            Self::Arrow => "Arrow IPC files",
            Self::Parquet => "Parquet files",
        }
    }
}

/// The files of one split.
#[derive(Debug, Clone)]
pub(crate) struct SplitFiles {
    /// `None` where the layout has no splits.
    pub(crate) name: Option<String>,
    pub(crate) dir: PathBuf,
    pub(crate) shards: Vec<Shard>,
    /// Which file names the shards, for messages about missing ones.
    pub(crate) listed_by: &'static str,
    pub(crate) strays: Vec<PathBuf>,
    /// `cache-*.arrow` files: indices tables or results of `map`.
    pub(crate) caches: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

/// What a path holds.
#[derive(Debug, Clone)]
pub(crate) struct Survey {
    pub(crate) kind: DatasetKind,
    pub(crate) root: PathBuf,
    pub(crate) splits: Vec<SplitFiles>,
}

/// Finds out what `path` holds.
///
/// # Errors
/// [`SourceError::NotFound`] saying what kind of place it is instead and what to do, [`SourceError::Corrupt`]
/// for a broken JSON file, [`SourceError::Io`].
pub(crate) fn survey(path: &Path) -> Result<Survey, SourceError> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(no_such_path(path)),
        Err(e) => return Err(SourceError::io(path, "examine", e)),
    };
    if !meta.is_dir() {
        return survey_file(path);
    }
    let entries = list(path)?;
    let has = |name: &str| entries.iter().any(|e| e == name);
    let arrow: Vec<&str> = entries
        .iter()
        .map(String::as_str)
        .filter(|n| is_arrow(n))
        .collect();
    if entries.is_empty() {
        return not_found(format!(
            "{} is an empty directory: no dataset was saved or copied here",
            path.display()
        ));
    }
    if has("dataset_dict.json") {
        return survey_dict(path);
    }
    if has("state.json") {
        let split = saved_dataset(path, None)?;
        return Ok(Survey {
            kind: DatasetKind::SaveToDisk,
            root: path.to_owned(),
            splits: vec![split],
        });
    }
    if path.extension().is_some_and(|e| e == "incomplete") {
        return not_found(format!(
            "{} is the unfinished cache folder of a load_dataset that was interrupted: run load_dataset again and pass \
             the folder without .incomplete",
            path.display()
        ));
    }
    if let Some(shard) = arrow.iter().find(|n| is_saved_shard(n)) {
        return not_found(format!(
            "{} holds {shard}{} but no state.json: a save_to_disk folder that was saved or copied incompletely. \
             state.json says which shards belong to it and in what order: copy or save it again, or pass one .arrow file",
            path.display(),
            if arrow.len() > 1 {
                format!(" and {} more .arrow files", arrow.len() - 1)
            } else {
                String::new()
            }
        ));
    }
    if has("dataset_info.json") && arrow.iter().any(|n| !is_cache_file(n)) {
        return survey_cache(path, &entries);
    }
    if has("blobs") && has("snapshots") {
        let snapshots = list(&path.join("snapshots")).unwrap_or_default();
        return not_found(format!(
            "{} is a download folder of the Hugging Face hub (blobs, refs, snapshots), not a dataset: pass {} if that \
             holds parquet files, or load the dataset with load_dataset and save_to_disk",
            path.display(),
            match snapshots.as_slice() {
                [one] => path.join("snapshots").join(one).display().to_string(),
                many => format!("one of its {} snapshots", many.len()),
            }
        ));
    }
    let plain: Vec<&str> = arrow.iter().copied().filter(|n| !is_cache_file(n)).collect();
    if !plain.is_empty() {
        return survey_arrow_dir(path, &plain, &entries);
    }
    let parquet = parquet::find(path)?;
    if !parquet.is_empty() {
        return parquet_survey(path, &parquet);
    }
    not_a_dataset(path, &entries)
}

/// The split to read: the one asked for, or the only one.
///
/// # Errors
/// [`SourceError::NotFound`] with the splits there are and what to pass.
pub(crate) fn choose_split<'a>(
    survey: &'a Survey,
    split: Option<&str>,
) -> Result<&'a SplitFiles, SourceError> {
    let root = survey.root.display();
    let names: Vec<&str> = survey.splits.iter().filter_map(|s| s.name.as_deref()).collect();
    let kind = survey.kind.describe();
    match (survey.kind, split, survey.splits.as_slice()) {
        (DatasetKind::SaveToDisk, Some(split), [one]) if one.name.as_deref() != Some(split) => {
            not_found(format!(
                "{root} is one dataset{}, not a DatasetDict: leave split \"{split}\" out{}",
                one.name
                    .as_ref()
                    .map_or(" without a split name".to_owned(), |n| format!(
                        " (of split \"{n}\")"
                    )),
                match survey.root.parent() {
                    Some(parent) if parent.join("dataset_dict.json").is_file() =>
                        format!(", or pass the DatasetDict {}", parent.display()),
                    _ => String::new(),
                }
            ))
        }
        (_, Some(split), _) if names.is_empty() && survey.kind != DatasetKind::SaveToDisk => not_found(
            format!("{root} holds {kind} without splits: leave split \"{split}\" out"),
        ),
        (_, Some(split), all) => match all.iter().find(|s| s.name.as_deref() == Some(split)) {
            Some(found) => Ok(found),
            None => not_found(format!(
                "{root} is {kind} without a split \"{split}\": it has {}{}",
                names.join(", "),
                did_you_mean(split, &names)
            )),
        },
        (DatasetKind::DatasetDict, None, []) => not_found(format!("{root} is {kind} without any split")),
        (DatasetKind::DatasetDict, None, _) => not_found(format!(
            "{root} is {kind} with the splits {}: one of them is needed, for example --split {}",
            names.join(", "),
            preferred(&names)
        )),
        (_, None, [one]) => Ok(one),
        (_, None, _) => not_found(format!(
            "{root} is {kind} with the splits {} ({} files): one of them is needed, for example --split {}",
            names.join(", "),
            survey.splits.iter().map(|s| s.shards.len()).sum::<usize>(),
            preferred(&names)
        )),
    }
}

/// Refuses a split with missing files, naming the first and who lists it.
///
/// # Errors
/// [`SourceError::NotFound`].
pub(crate) fn check_present(split: &SplitFiles) -> Result<(), SourceError> {
    let missing: Vec<&Shard> = split.shards.iter().filter(|s| !s.path.exists()).collect();
    let Some(first) = missing.first() else {
        if split.shards.is_empty() {
            return not_found(format!(
                "{} holds no data: {} lists no file",
                split.dir.display(),
                split.listed_by
            ));
        }
        return Ok(());
    };
    let name = |p: &Path| {
        p.file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let there: Vec<String> = list(&split.dir)?
        .into_iter()
        .filter(|n| is_arrow(n))
        .take(8)
        .collect();
    not_found(format!(
        "{}: {} lists {} files and {} of them {} missing, first {}{}. Files there: {}",
        split.dir.display(),
        split.listed_by,
        split.shards.len(),
        missing.len(),
        if missing.len() == 1 { "is" } else { "are" },
        name(&first.path),
        first
            .expected_rows
            .as_ref()
            .map_or(String::new(), |(n, _)| format!(" ({n} rows)")),
        if there.is_empty() {
            "none".to_owned()
        } else {
            there.join(", ")
        }
    ))
}

fn preferred<'a>(names: &[&'a str]) -> &'a str {
    names
        .iter()
        .find(|n| **n == "train")
        .or(names.first())
        .copied()
        .unwrap_or("train")
}

fn parquet_survey(root: &Path, files: &[String]) -> Result<Survey, SourceError> {
    let splits = parquet::splits(files)
        .map_err(|text| SourceError::NotFound(format!("{}: {text}", root.display())))?
        .into_iter()
        .map(|(name, files)| SplitFiles {
            name: Some(name),
            dir: root.to_owned(),
            shards: files
                .into_iter()
                .map(|f| Shard {
                    path: root.join(f),
                    expected_rows: None,
                })
                .collect(),
            listed_by: "the directory",
            strays: Vec::new(),
            caches: Vec::new(),
            warnings: Vec::new(),
        })
        .collect();
    Ok(Survey {
        kind: DatasetKind::Parquet,
        root: root.to_owned(),
        splits,
    })
}
