//! Which parquet files of a folder make up which split, as `load_dataset("parquet", data_dir=folder)` decides
//! it.
//!
//! Reproduces `data_files._get_data_files_patterns` and `resolve_pattern` of datasets 5.2.0: files
//! `data/<split>-00000-of-00002*` first; else folders named after a split; else file names that hold a
//! split's keyword; else everything is `train`. Hidden files and folders, and folders whose name begins with
//! two underscores, are left out. Within a split, pattern by pattern, files are in the sequence of their full
//! paths. Files that two patterns of one split match would be read twice there; here that is an error.

use std::fs;
use std::path::Path;

use super::listing::list;
use crate::source::SourceError;

/// Folder levels searched.
const DEPTH: usize = 8;

/// Keywords of each split, in the sequence in which they are tried.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Paths of all parquet files below `root`, relative to it with `/` between the parts, sorted.
///
/// # Errors
/// [`SourceError::Io`] when a folder cannot be listed.
pub(crate) fn find(root: &Path) -> Result<Vec<String>, SourceError> {
    let mut found = Vec::new();
    walk(root, "", DEPTH, &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(dir: &Path, prefix: &str, depth: usize, found: &mut Vec<String>) -> Result<(), SourceError> {
    for name in list(dir)? {
        let path = dir.join(&name);
        if name.starts_with('.') {
            continue;
        }
        // Follows links to files (hub snapshots are such), not to folders.
        if fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir()) {
            if depth > 0 && !name.starts_with("__") {
                walk(&path, &format!("{prefix}{name}/"), depth - 1, found)?;
            }
        } else if name.ends_with(".parquet") && path.is_file() {
            found.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

/// Splits and their files, from sorted relative paths.
///
/// # Errors
/// A sentence when a file would be read twice.
pub(crate) fn splits(files: &[String]) -> Result<Vec<(String, Vec<String>)>, String> {
    let sharded: Vec<(&str, &String)> = files
        .iter()
        .filter_map(|f| Some((sharded_split(f)?, f)))
        .collect();
    if !sharded.is_empty() {
        let mut names: Vec<&str> = sharded.iter().map(|(split, _)| *split).collect();
        let rank = |name: &str| {
            KEYWORDS
                .iter()
                .position(|(split, _)| *split == name)
                .unwrap_or(KEYWORDS.len())
        };
        names.sort_by_key(|name| (rank(name), *name));
        names.dedup();
        return Ok(names
            .into_iter()
            .map(|name| {
                let files = sharded
                    .iter()
                    .filter(|(split, _)| *split == name)
                    .map(|(_, f)| (*f).clone());
                (name.to_owned(), files.collect())
            })
            .collect());
    }
    for in_folders in [true, false] {
        let mut splits = Vec::new();
        for (split, keywords) in KEYWORDS {
            let mut matched: Vec<String> = Vec::new();
            for keyword in keywords {
                for pattern in if in_folders {
                    &FOLDER_PATTERNS[..]
                } else {
                    &FILE_PATTERNS[..]
                } {
                    for file in files
                        .iter()
                        .filter(|f| pattern_matches(f, keyword, *pattern, in_folders))
                    {
                        if matched.contains(file) {
                            return Err(format!(
                                "{file} matches two patterns of the split \"{split}\", so load_dataset would read it twice: \
                                 pass the files' own folder, or rename it"
                            ));
                        }
                        matched.push(file.clone());
                    }
                }
            }
            if !matched.is_empty() {
                splits.push((split.to_owned(), matched));
            }
        }
        if !splits.is_empty() {
            return Ok(splits);
        }
    }
    Ok(vec![("train".to_owned(), files.to_vec())])
}

/// What may stand around a keyword: (anything and a separator before it, a separator and anything behind it).
const FOLDER_PATTERNS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];
const FILE_PATTERNS: [(bool, bool); 2] = [(false, true), (true, true)];

fn pattern_matches(file: &str, keyword: &str, (before, behind): (bool, bool), in_folders: bool) -> bool {
    let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
    if in_folders {
        folders
            .split('/')
            .any(|part| part_matches(part, keyword, before, behind))
    } else {
        part_matches(name, keyword, before, behind)
    }
}

fn part_matches(part: &str, keyword: &str, before: bool, behind: bool) -> bool {
    let separator = |c: char| c.is_ascii_digit() || "-._ ".contains(c);
    part.match_indices(keyword).any(|(at, _)| {
        let front = &part[..at];
        let back = &part[at + keyword.len()..];
        let front_fits = if before {
            front.ends_with(separator)
        } else {
            front.is_empty()
        };
        front_fits
            && if behind {
                back.starts_with(separator)
            } else {
                back.is_empty()
            }
    })
}

/// The split of `data/<split>-00000-of-00002….parquet`.
fn sharded_split(file: &str) -> Option<&str> {
    let name = file.strip_prefix("data/").filter(|n| !n.contains('/'))?;
    // The last place where the numbers can stand, as a greedy match finds it.
    let bytes = name.as_bytes();
    let digits = |from: usize| {
        bytes
            .get(from..from + 5)
            .is_some_and(|d| d.iter().all(u8::is_ascii_digit))
    };
    (0..name.len())
        .rev()
        .filter(|&i| name.is_char_boundary(i))
        .find(|&i| {
            name[i..].starts_with('-')
                && digits(i + 1)
                && name.get(i + 6..i + 10) == Some("-of-")
                && digits(i + 10)
                && name[i + 15..].contains('.')
        })
        .map(|i| &name[..i])
        .filter(|split| {
            !split.is_empty() && split.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Vec<(String, Vec<String>)> {
        let mut files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
        files.sort();
        splits(&files).unwrap()
    }

    /// Expected values recorded from `datasets.data_files.get_data_patterns` + `DataFilesDict.from_patterns`,
    /// 5.2.0.
    #[test]
    fn splits_are_those_of_load_dataset() {
        let expect = |files: &[&str], want: &[(&str, &[&str])]| {
            let want: Vec<(String, Vec<String>)> = want
                .iter()
                .map(|(s, f)| ((*s).to_owned(), f.iter().map(|f| (*f).to_owned()).collect()))
                .collect();
            assert_eq!(of(files), want, "{files:?}");
        };
        expect(
            &["b.parquet", "a.parquet", "sub/c.parquet"],
            &[("train", &["a.parquet", "b.parquet", "sub/c.parquet"])],
        );
        expect(
            &[
                "data/train-00001-of-00002.parquet",
                "data/train-00000-of-00002.parquet",
                "data/extra-00000-of-00001-ab12.parquet",
                "other.parquet",
            ],
            &[
                (
                    "train",
                    &[
                        "data/train-00000-of-00002.parquet",
                        "data/train-00001-of-00002.parquet",
                    ],
                ),
                ("extra", &["data/extra-00000-of-00001-ab12.parquet"]),
            ],
        );
        expect(
            &[
                "train/0.parquet",
                "train/1.parquet",
                "test/0.parquet",
                "rest.parquet",
            ],
            &[
                ("train", &["train/0.parquet", "train/1.parquet"]),
                ("test", &["test/0.parquet"]),
            ],
        );
        expect(
            &[
                "train.parquet",
                "my_dev.parquet",
                "my-dev.parquet",
                "test_1.parquet",
                "x.parquet",
            ],
            &[
                ("train", &["train.parquet"]),
                ("validation", &["my-dev.parquet", "my_dev.parquet"]),
                ("test", &["test_1.parquet"]),
            ],
        );
        expect(
            &["training-a.parquet", "a-train-b.parquet", "train0.parquet"],
            &[(
                "train",
                &["train0.parquet", "a-train-b.parquet", "training-a.parquet"],
            )],
        );
    }

    #[test]
    fn a_file_matched_twice_is_refused() {
        let error = splits(&["train-train-1.parquet".to_owned()]).unwrap_err();
        assert!(error.contains("twice"), "{error}");
    }
}
