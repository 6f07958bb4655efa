//! Single files, and folders of Arrow files without any JSON.

use std::collections::BTreeMap;
use std::path::Path;

use super::listing::{is_arrow, is_cache_file, not_found, numbered_shard};
use super::{DatasetKind, SplitFiles, Survey};
use crate::source::SourceError;
use crate::source::table::Shard;

pub(super) fn survey_file(path: &Path) -> Result<Survey, SourceError> {
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
    // `map` with several processes writes `cache-<hash>_00001_of_00004.arrow`.
    if let Some((_, _, count)) = numbered_shard(&name.replace('_', "-"))
        && count > 1
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

/// A folder of Arrow files without any JSON: cache files that lost theirs, or anyone's.
pub(super) fn survey_arrow_dir(
    root: &Path,
    names: &[&str],
    entries: &[String],
) -> Result<Survey, SourceError> {
    // `<name>-<split>-00001-of-00004.arrow`: the count says whether all are there.
    let mut groups: BTreeMap<(&str, u64), Vec<u64>> = BTreeMap::new();
    let mut numbered = 0usize;
    for name in names {
        if let Some((stem, index, count)) = numbered_shard(name) {
            groups.entry((stem, count)).or_default().push(index);
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
