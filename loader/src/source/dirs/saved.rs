//! Folders of `Dataset.save_to_disk` and `DatasetDict.save_to_disk`.

use std::path::Path;

use serde_json::Value;

use super::listing::{not_found, others, plain_name, read_json, stray_warning};
use super::{DatasetKind, SplitFiles, Survey};
use crate::source::SourceError;
use crate::source::table::Shard;

pub(super) fn survey_dict(root: &Path) -> Result<Survey, SourceError> {
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

/// One folder of `Dataset.save_to_disk`.
pub(super) fn saved_dataset(dir: &Path, split: Option<&str>) -> Result<SplitFiles, SourceError> {
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
