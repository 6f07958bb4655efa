//! What a path holds: which kind of dataset, its splits, the files of each in order, and what else lies
//! there.
//!
//! Reads directory listings and the small JSON files only. Facts about layouts are those of datasets 5.2.0:
//! `Dataset.save_to_disk` (`state.json` lists the shards), `DatasetDict.save_to_disk` (`dataset_dict.json`),
//! and the cache folder of `load_dataset` (`naming.filenames_for_dataset_split`). Row counts in the
//! `dataset_info.json` of a saved dataset may be those of an ancestor (`map` and `filter` leave them) and are
//! not used; in a cache folder they are the builder's own and every file is checked against them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::SourceError;
use super::arrow_table::Shard;
use super::parquet_dir;

/// Largest JSON file read.
const MAX_JSON: u64 = 256 << 20;

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
    let parquet = parquet_dir::find(path)?;
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

/// `. Did you mean "x"?` when a candidate is close.
pub(crate) fn did_you_mean(given: &str, candidates: &[&str]) -> String {
    let limit = (given.chars().count() / 3).max(2);
    candidates
        .iter()
        .map(|c| (strsim::damerau_levenshtein(given, c), c))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map_or(String::new(), |(_, c)| format!(". Did you mean \"{c}\"?"))
}

fn preferred<'a>(names: &[&'a str]) -> &'a str {
    names
        .iter()
        .find(|n| **n == "train")
        .or(names.first())
        .copied()
        .unwrap_or("train")
}

fn not_found<T>(text: String) -> Result<T, SourceError> {
    Err(SourceError::NotFound(text))
}

fn no_such_path(path: &Path) -> SourceError {
    let mut text = format!("{} does not exist", path.display());
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        match list(parent) {
            Ok(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                text += &did_you_mean(&name.to_string_lossy(), &names);
            }
            Err(_) => text += &format!(", and neither does {}", parent.display()),
        }
    }
    SourceError::NotFound(text)
}

/// Names in a directory, sorted; names that are no UTF-8 are left out (nothing here has one).
pub(crate) fn list(dir: &Path) -> Result<Vec<String>, SourceError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| SourceError::io(dir, "list", e))? {
        let entry = entry.map_err(|e| SourceError::io(dir, "list", e))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Parses a JSON file of bounded size.
pub(crate) fn read_json(path: &Path) -> Result<Value, SourceError> {
    let size = fs::metadata(path)
        .map_err(|e| SourceError::io(path, "examine", e))?
        .len();
    if size > MAX_JSON {
        return Err(SourceError::corrupt(
            path,
            format!("{size} bytes are too many for this JSON file"),
        ));
    }
    let text = fs::read(path).map_err(|e| SourceError::io(path, "read", e))?;
    serde_json::from_slice(&text).map_err(|e| SourceError::corrupt(path, format!("is not valid JSON: {e}")))
}

fn is_arrow(name: &str) -> bool {
    [".arrow", ".feather", ".arrows"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn is_cache_file(name: &str) -> bool {
    name.starts_with("cache-") || name.starts_with("tmp")
}

/// `data-00000-of-00004.arrow`, or `dataset.arrow` of datasets 1.
fn is_saved_shard(name: &str) -> bool {
    name == "dataset.arrow"
        || name
            .strip_prefix("data-")
            .is_some_and(|rest| shard_numbers(rest).is_some())
}

/// (index, count) of `00001-of-00004.arrow`.
fn shard_numbers(rest: &str) -> Option<(u64, u64)> {
    let (index, count) = rest.strip_suffix(".arrow")?.split_once("-of-")?;
    let number = |s: &str| {
        (s.len() >= 5 && s.bytes().all(|b| b.is_ascii_digit()))
            .then(|| s.parse().ok())
            .flatten()
    };
    Some((number(index)?, number(count)?))
}

fn survey_file(path: &Path) -> Result<Survey, SourceError> {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let dir = path.parent().map(Path::to_owned).unwrap_or_default();
    if name.ends_with(".json") {
        return not_found(format!(
            "{} is not a dataset: pass the directory that holds it",
            path.display()
        ));
    }
    let kind = if name.ends_with(".parquet") {
        DatasetKind::Parquet
    } else {
        DatasetKind::Arrow
    };
    let mut warnings = Vec::new();
    if let Some((_, count)) = name.rsplit_once('-').and_then(|_| {
        let at = name.rfind("-of-").and_then(|of| name[..of].rfind('-'))?;
        shard_numbers(&name[at + 1..])
    }) && count > 1
    {
        warnings.push(format!("{name} is one of {count} shards; only this one is read"));
    }
    let split = SplitFiles {
        name: None,
        dir,
        shards: vec![Shard {
            path: path.to_owned(),
            expected_rows: None,
        }],
        listed_by: "the path",
        strays: Vec::new(),
        caches: Vec::new(),
        warnings,
    };
    Ok(Survey {
        kind,
        root: path.to_owned(),
        splits: vec![split],
    })
}

fn survey_dict(root: &Path) -> Result<Survey, SourceError> {
    let path = root.join("dataset_dict.json");
    let json = read_json(&path)?;
    let names: Option<Vec<&str>> = json
        .get("splits")
        .and_then(Value::as_array)
        .and_then(|a| a.iter().map(Value::as_str).collect());
    let Some(names) = names else {
        return Err(SourceError::corrupt(
            path,
            "has no list of names under \"splits\"",
        ));
    };
    let mut splits = Vec::new();
    for name in names {
        plain_name(&path, name)?;
        splits.push(saved_dataset(&root.join(name), Some(name)).map_err(|e| match e {
            SourceError::NotFound(text) => SourceError::NotFound(format!(
                "{}: dataset_dict.json lists the split \"{name}\": {text}",
                root.display()
            )),
            other => other,
        })?);
    }
    Ok(Survey {
        kind: DatasetKind::DatasetDict,
        root: root.to_owned(),
        splits,
    })
}

/// Refuses names that would lead out of the directory that lists them.
fn plain_name(listed_in: &Path, name: &str) -> Result<(), SourceError> {
    let mut parts = Path::new(name).components();
    if matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return Ok(());
    }
    Err(SourceError::corrupt(
        listed_in,
        format!("lists \"{name}\", which is not the name of a file beside it"),
    ))
}

/// One folder of `Dataset.save_to_disk`.
fn saved_dataset(dir: &Path, split: Option<&str>) -> Result<SplitFiles, SourceError> {
    if !dir.is_dir() {
        return not_found(format!("{} does not exist", dir.display()));
    }
    let state_path = dir.join("state.json");
    if !state_path.is_file() {
        return not_found(format!(
            "{} has no state.json: the split was saved or copied incompletely",
            dir.display()
        ));
    }
    let state = read_json(&state_path)?;
    let Some(files) = state.get("_data_files").and_then(Value::as_array) else {
        return Err(SourceError::corrupt(
            state_path,
            "has no list \"_data_files\": it is not the state of a saved dataset",
        ));
    };
    let mut shards = Vec::new();
    for file in files {
        let Some(name) = file.get("filename").and_then(Value::as_str) else {
            return Err(SourceError::corrupt(
                state_path,
                "has an entry without \"filename\" in \"_data_files\"",
            ));
        };
        plain_name(&state_path, name)?;
        if shards
            .iter()
            .any(|s: &Shard| s.path.file_name().is_some_and(|n| n == name))
        {
            return Err(SourceError::corrupt(state_path, format!("lists {name} twice")));
        }
        shards.push(Shard {
            path: dir.join(name),
            expected_rows: None,
        });
    }
    let mut warnings = Vec::new();
    if !dir.join("dataset_info.json").is_file() {
        warnings.push(format!(
            "{} has no dataset_info.json; datasets.load_from_disk would refuse it",
            dir.display()
        ));
    }
    let old_indices = state
        .get("_indices_data_files")
        .or_else(|| state.get("_indices_files"));
    if let Some(file) = old_indices.and_then(Value::as_array).and_then(|a| a.first()) {
        let name = file.get("filename").and_then(Value::as_str).unwrap_or("?");
        warnings.push(format!(
            "{}: state.json names the indices table {name} (an old version of datasets wrote it); load_from_disk ignores \
             it today and so does Ceteris: pass --indices to apply it",
            dir.display()
        ));
    }
    let (caches, strays) = others(dir, &shards)?;
    if !strays.is_empty() {
        warnings.push(stray_warning(dir, "state.json", shards.len(), &strays));
    }
    let name = split
        .map(str::to_owned)
        .or_else(|| state.get("_split").and_then(Value::as_str).map(str::to_owned));
    Ok(SplitFiles {
        name,
        dir: dir.to_owned(),
        shards,
        listed_by: "state.json",
        strays,
        caches,
        warnings,
    })
}

/// Arrow files beside the shards: (caches, strays).
fn others(dir: &Path, shards: &[Shard]) -> Result<(Vec<PathBuf>, Vec<PathBuf>), SourceError> {
    let listed = |name: &str| {
        shards
            .iter()
            .any(|s| s.path.file_name().is_some_and(|n| n == name))
    };
    let rest = list(dir)?.into_iter().filter(|n| is_arrow(n) && !listed(n));
    let (caches, strays): (Vec<String>, Vec<String>) = rest.partition(|n| is_cache_file(n));
    let full = |names: Vec<String>| names.into_iter().map(|n| dir.join(n)).collect();
    Ok((full(caches), full(strays)))
}

fn stray_warning(dir: &Path, listed_by: &str, listed: usize, strays: &[PathBuf]) -> String {
    let names: Vec<String> = strays
        .iter()
        .filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned()))
        .collect();
    format!(
        "{}: {listed_by} lists {listed} shards; {} more .arrow files lie there and are not read: {}",
        dir.display(),
        names.len(),
        names.join(", ")
    )
}

/// A cache folder of `load_dataset`.
fn survey_cache(root: &Path, entries: &[String]) -> Result<Survey, SourceError> {
    let info_path = root.join("dataset_info.json");
    let info = read_json(&info_path)?;
    let Some(declared) = info
        .get("splits")
        .and_then(Value::as_object)
        .filter(|s| !s.is_empty())
    else {
        return Err(SourceError::corrupt(
            info_path,
            "lists no splits: it is neither the folder of a finished load_dataset nor, without state.json, a saved dataset",
        ));
    };
    let prefixes: Vec<String> = ["dataset_name", "builder_name"]
        .iter()
        .filter_map(|key| info.get(*key).and_then(Value::as_str).map(snake_case))
        .collect();
    let mut splits = Vec::new();
    for (name, split) in declared {
        plain_name(&info_path, name)?;
        let lengths: Vec<u64> = split
            .get("shard_lengths")
            .and_then(Value::as_array)
            .map(|a| a.iter().filter_map(Value::as_u64).collect())
            .unwrap_or_default();
        let total = split.get("num_examples").and_then(Value::as_u64);
        let ends: Vec<String> = if lengths.len() > 1 {
            (0..lengths.len())
                .map(|i| format!("-{name}-{i:05}-of-{:05}.arrow", lengths.len()))
                .collect()
        } else {
            vec![format!("-{name}.arrow")]
        };
        let there = |prefix: &str| {
            ends.iter()
                .any(|end| entries.iter().any(|e| *e == format!("{prefix}{end}")))
        };
        // The builder's name first; else whatever stands before the split's name.
        let prefix = prefixes
            .iter()
            .find(|p| there(p))
            .cloned()
            .or_else(|| {
                entries
                    .iter()
                    .find_map(|e| ends.iter().find_map(|end| e.strip_suffix(end.as_str())))
                    .map(str::to_owned)
            })
            .or_else(|| prefixes.first().cloned())
            .unwrap_or_default();
        let shards = ends
            .iter()
            .enumerate()
            .map(|(i, end)| Shard {
                path: root.join(format!("{prefix}{end}")),
                expected_rows: if lengths.len() > 1 {
                    lengths.get(i).copied()
                } else {
                    total
                }
                .map(|n| (n, "dataset_info.json".to_owned())),
            })
            .collect();
        splits.push(SplitFiles {
            name: Some(name.clone()),
            dir: root.to_owned(),
            shards,
            listed_by: "dataset_info.json",
            strays: Vec::new(),
            caches: Vec::new(),
            warnings: Vec::new(),
        });
    }
    // JSON objects come without a sequence here: train first, the others by name.
    splits.sort_by_key(|s| (s.name.as_deref() != Some("train"), s.name.clone()));
    let all: Vec<Shard> = splits.iter().flat_map(|s| s.shards.clone()).collect();
    let (caches, strays) = others(root, &all)?;
    for split in &mut splits {
        split.caches.clone_from(&caches);
        if !strays.is_empty() {
            split
                .warnings
                .push(stray_warning(root, "dataset_info.json", all.len(), &strays));
            split.strays.clone_from(&strays);
        }
    }
    Ok(Survey {
        kind: DatasetKind::HubCache,
        root: root.to_owned(),
        splits,
    })
}

/// The name part of cache files: `camelcase_to_snakecase` of datasets' naming rules.
fn snake_case(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (i, &c) in chars.iter().enumerate() {
        let before = i.checked_sub(1).map(|j| chars[j]);
        let next_is_lower = chars.get(i + 1).is_some_and(char::is_ascii_lowercase);
        let splits = c.is_ascii_uppercase()
            && before.is_some_and(|b| {
                b.is_ascii_lowercase() || b.is_ascii_digit() || (b.is_ascii_uppercase() && next_is_lower)
            });
        if splits {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// A folder of Arrow files without any JSON: cache files that lost theirs, or anyone's.
fn survey_arrow_dir(root: &Path, names: &[&str], entries: &[String]) -> Result<Survey, SourceError> {
    // `<name>-<split>-00001-of-00004.arrow`: the count says whether all are there.
    let mut groups: BTreeMap<(&str, u64), Vec<u64>> = BTreeMap::new();
    let mut numbered = 0usize;
    for name in names {
        if let Some(of) = name.rfind("-of-")
            && let Some(dash) = name[..of].rfind('-')
            && let Some((index, count)) = shard_numbers(&name[dash + 1..])
        {
            groups.entry((&name[..dash], count)).or_default().push(index);
            numbered += 1;
        }
    }
    let mut warnings = Vec::new();
    if numbered == names.len() {
        let mut splits = Vec::new();
        for ((stem, count), there) in &groups {
            if *count > 1 << 20 || there.len() as u64 > *count {
                return not_found(format!(
                    "{}: shard numbers of {stem} do not fit together",
                    root.display()
                ));
            }
            let shards = (0..*count)
                .map(|i| Shard {
                    path: root.join(format!("{stem}-{i:05}-of-{count:05}.arrow")),
                    expected_rows: None,
                })
                .collect();
            splits.push(SplitFiles {
                name: Some(stem.rsplit_once('-').map_or(*stem, |(_, split)| split).to_owned()),
                dir: root.to_owned(),
                shards,
                listed_by: "the file names",
                strays: Vec::new(),
                caches: Vec::new(),
                warnings: vec![format!(
                    "{} has no dataset_info.json: row counts cannot be checked",
                    root.display()
                )],
            });
        }
        let mut seen: Vec<&str> = splits.iter().filter_map(|s| s.name.as_deref()).collect();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() != splits.len() {
            return not_found(format!(
                "{} holds shards of several datasets or of several savings ({}): pass a folder with one",
                root.display(),
                groups
                    .keys()
                    .map(|(stem, count)| format!("{stem} in {count}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        return Ok(Survey {
            kind: DatasetKind::HubCache,
            root: root.to_owned(),
            splits,
        });
    }
    if names.len() > 1 {
        warnings.push(format!(
            "{} has no state.json: its {} .arrow files are read in the sequence of their names ({} first, {} last)",
            root.display(),
            names.len(),
            names.first().copied().unwrap_or_default(),
            names.last().copied().unwrap_or_default()
        ));
    }
    let caches = entries
        .iter()
        .filter(|n| is_arrow(n) && is_cache_file(n))
        .map(|n| root.join(n))
        .collect();
    let split = SplitFiles {
        name: None,
        dir: root.to_owned(),
        shards: names
            .iter()
            .map(|n| Shard {
                path: root.join(n),
                expected_rows: None,
            })
            .collect(),
        listed_by: "the directory",
        strays: Vec::new(),
        caches,
        warnings,
    };
    Ok(Survey {
        kind: DatasetKind::Arrow,
        root: root.to_owned(),
        splits: vec![split],
    })
}

fn parquet_survey(root: &Path, files: &[String]) -> Result<Survey, SourceError> {
    let splits = parquet_dir::splits(files)
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

fn not_a_dataset<T>(root: &Path, entries: &[String]) -> Result<T, SourceError> {
    let below = datasets_below(root, 5);
    if !below.is_empty() {
        let shown: Vec<String> = below.iter().take(5).map(|p| p.display().to_string()).collect();
        return not_found(format!(
            "{} is not a dataset but {} below it: pass {}{}",
            root.display(),
            if below.len() == 1 {
                "one lies".to_owned()
            } else {
                format!("{} lie", below.len())
            },
            shown.join(" or "),
            if below.len() > shown.len() {
                " or another"
            } else {
                ""
            }
        ));
    }
    if entries.iter().any(|n| n == "dataset_info.json") {
        return not_found(format!(
            "{} has a dataset_info.json but no .arrow file: the data was not saved or not copied",
            root.display()
        ));
    }
    let shown: Vec<&str> = entries.iter().take(6).map(String::as_str).collect();
    not_found(format!(
        "{} holds no dataset: no state.json, dataset_dict.json, dataset_info.json, .arrow or .parquet file among {}{}",
        root.display(),
        shown.join(", "),
        if entries.len() > shown.len() {
            format!(" and {} more", entries.len() - shown.len())
        } else {
            String::new()
        }
    ))
}

/// Folders below `root` that look like datasets, to name them in a message.
fn datasets_below(root: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if depth == 0 {
        return found;
    }
    for name in list(root).unwrap_or_default() {
        let dir = root.join(&name);
        if !dir.is_dir() || dir.is_symlink() || name.ends_with(".incomplete") {
            continue;
        }
        if ["state.json", "dataset_dict.json", "dataset_info.json"]
            .iter()
            .any(|f| dir.join(f).is_file())
        {
            found.push(dir);
        } else {
            found.extend(datasets_below(&dir, depth - 1));
        }
        if found.len() > 32 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_file_names_follow_the_naming_rules() {
        // Recorded from datasets.naming.camelcase_to_snakecase (5.2.0).
        for (name, snake) in [
            ("json", "json"),
            ("parquet", "parquet"),
            ("SlimPajama-6B", "slim_pajama-6_b"),
            ("MyDATASet", "my_data_set"),
            ("fineweb-edu", "fineweb-edu"),
            ("C4", "c4"),
            ("ABCDef2Gh", "abc_def2_gh"),
        ] {
            assert_eq!(snake_case(name), snake, "{name}");
        }
    }

    #[test]
    fn shard_names_are_told_apart() {
        assert!(is_saved_shard("data-00000-of-00004.arrow"));
        assert!(!is_saved_shard("data-train.arrow"));
        assert!(!is_saved_shard("json-train-00000-of-00003.arrow"));
        assert_eq!(shard_numbers("00002-of-00003.arrow"), Some((2, 3)));
        assert_eq!(shard_numbers("2-of-3.arrow"), None);
    }
}
