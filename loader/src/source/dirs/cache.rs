//! Cache folders of `load_dataset`.

use std::path::Path;

use serde_json::Value;

use super::listing::{others, plain_name, read_json, stray_warning};
use super::{DatasetKind, SplitFiles, Survey};
use crate::source::SourceError;
use crate::source::table::Shard;

/// A cache folder of `load_dataset`.
pub(super) fn survey_cache(root: &Path, entries: &[String]) -> Result<Survey, SourceError> {
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
pub(super) fn snake_case(name: &str) -> String {
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
}
