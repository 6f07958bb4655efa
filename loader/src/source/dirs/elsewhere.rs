//! Messages about folders that are no dataset.

use std::path::{Path, PathBuf};

use super::listing::{list, not_found};
use crate::source::SourceError;

pub(super) fn not_a_dataset<T>(root: &Path, entries: &[String]) -> Result<T, SourceError> {
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
pub(super) fn datasets_below(root: &Path, depth: usize) -> Vec<PathBuf> {
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
