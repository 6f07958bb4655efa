//! Directory listings, small JSON files, file names, and messages about them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::source::SourceError;
use crate::source::table::Shard;

/// Largest JSON file read.
const MAX_JSON: u64 = 256 << 20;

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

pub(super) fn not_found<T>(text: String) -> Result<T, SourceError> {
    Err(SourceError::NotFound(text))
}

pub(super) fn no_such_path(path: &Path) -> SourceError {
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

/// Refuses names that would lead out of the directory that lists them.
pub(super) fn plain_name(listed_in: &Path, name: &str) -> Result<(), SourceError> {
    let mut parts = Path::new(name).components();
    if matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return Ok(());
    }
    Err(SourceError::corrupt(
        listed_in,
        format!("lists \"{name}\", which is not the name of a file beside it"),
    ))
}

pub(super) fn is_arrow(name: &str) -> bool {
    [".arrow", ".feather", ".arrows"]
        .iter()
        .any(|end| name.ends_with(end))
}

pub(super) fn is_cache_file(name: &str) -> bool {
    name.starts_with("cache-") || name.starts_with("tmp")
}

/// `data-00000-of-00004.arrow`, or `dataset.arrow` of datasets 1.
pub(super) fn is_saved_shard(name: &str) -> bool {
    name == "dataset.arrow"
        || name
            .strip_prefix("data-")
            .is_some_and(|rest| shard_numbers(rest).is_some())
}

/// (stem, index, count) of `<stem>-00001-of-00004.arrow`.
pub(super) fn numbered_shard(name: &str) -> Option<(&str, u64, u64)> {
    let dash = name[..name.rfind("-of-")?].rfind('-')?;
    let (index, count) = shard_numbers(&name[dash + 1..])?;
    Some((&name[..dash], index, count))
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

/// Arrow files beside the shards: (caches, strays).
pub(super) fn others(dir: &Path, shards: &[Shard]) -> Result<(Vec<PathBuf>, Vec<PathBuf>), SourceError> {
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

pub(super) fn stray_warning(dir: &Path, listed_by: &str, listed: usize, strays: &[PathBuf]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_are_told_apart() {
        assert!(is_saved_shard("data-00000-of-00004.arrow"));
        assert!(!is_saved_shard("data-train.arrow"));
        assert!(!is_saved_shard("json-train-00000-of-00003.arrow"));
        assert_eq!(shard_numbers("00002-of-00003.arrow"), Some((2, 3)));
        assert_eq!(shard_numbers("2-of-3.arrow"), None);
    }
}
