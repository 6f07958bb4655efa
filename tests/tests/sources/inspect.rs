//! `inspect`: what a path holds, as a structure, as JSON and as text.

use std::fs;
use std::path::Path;

use ceteris_loader::inspect::{InspectOptions, Inspection, inspect};
use ceteris_loader::source::{DatasetKind, FingerprintMode, HfSource, Source, SourceOptions};
use ceteris_tests::datasets::{save_cache, save_rows, uniform_rows, write_indices};

use super::assert_says;

fn look(path: &Path) -> Inspection {
    inspect(path, &InspectOptions::default(), &|_| {}).unwrap()
}

#[test]
fn a_saved_dataset_is_described_with_its_caches_and_strays() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &uniform_rows(12, 8, 50), 3);
    save_rows(dir.path(), &uniform_rows(50, 8, 50), 2);
    write_indices(&dir.path().join("cache-aa.arrow"), &[3, 49, 0]);
    write_indices(&dir.path().join("cache-bb.arrow"), &[50]);
    fs::copy(
        dir.path().join("data-00000-of-00003.arrow"),
        dir.path().join("cache-cc.arrow"),
    )
    .unwrap();
    let found = look(dir.path());
    assert_eq!(found.kind, DatasetKind::SaveToDisk);
    let [split] = found.splits.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        (
            split.rows,
            split.files.len(),
            split.files[1].rows,
            split.files[1].record_batches
        ),
        (50, 2, Some(25), Some(3))
    );
    let tokens = split.tokens.as_ref().unwrap();
    assert_eq!(
        (tokens.column.as_str(), tokens.lengths.total, tokens.uniform),
        ("input_ids", 400, true)
    );
    let indices: Vec<_> = split
        .indices
        .iter()
        .map(|t| (t.file.as_str(), t.rows, t.largest, t.fits))
        .collect();
    assert_eq!(
        indices,
        [
            ("cache-aa.arrow", 3, Some(49), true),
            ("cache-bb.arrow", 1, Some(50), false)
        ]
    );
    assert_eq!(split.cached_tables[0].rows, 4);
    assert_eq!(split.strays.len(), 3);
    assert!(split.problems.is_empty());
    let command = found.suggested_command.clone().unwrap();
    assert_says(&command, &["loader --order fla --cache-dir", "--seq-length 8"]);
    assert_says(
        &found.to_string(),
        &[
            "a dataset saved with save_to_disk",
            "50 in 2 files",
            "id: int64",
            "input_ids: list<item: int32>  (can hold tokens)",
            "tokens    400 in input_ids, every row has 8",
            "cache-aa.arrow: 3 rows (applied only with --indices)",
            "cache-bb.arrow: 1 rows (applied only with --indices); points outside this split",
            "warning   ",
            &command,
        ],
    );
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["kind"], "save_to_disk");
    assert_eq!(json["splits"][0]["columns"][1]["type"], "list<item: int32>");
    assert_eq!(json["splits"][0]["tokens"]["max"], 8);
    assert_eq!(json["splits"][0]["indices"][0]["file"], "cache-aa.arrow");
}

#[test]
fn every_split_is_shown_and_one_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let mut ragged = uniform_rows(9, 5, 50);
    ragged[3].pop();
    save_cache(
        dir.path(),
        "json",
        &[
            ("train", vec![uniform_rows(20, 8, 50), uniform_rows(10, 8, 50)]),
            ("test", vec![ragged]),
        ],
    );
    let found = look(dir.path());
    assert_eq!(found.kind, DatasetKind::HubCache);
    let names: Vec<_> = found
        .splits
        .iter()
        .map(|s| (s.name.as_deref().unwrap(), s.rows))
        .collect();
    assert_eq!(names, [("train", 30), ("test", 9)]);
    assert_says(
        &found.suggested_command.unwrap(),
        &["--split train", "--seq-length 8"],
    );
    let options = InspectOptions {
        split: Some("test".to_owned()),
        fingerprint: Some(FingerprintMode::Full),
        ..InspectOptions::default()
    };
    let found = inspect(dir.path(), &options, &|_| {}).unwrap();
    assert_says(
        &found.to_string(),
        &["rows have 4 to 5", "--on-ragged pad", "blake3 "],
    );
    let test = SourceOptions {
        split: Some("test".to_owned()),
        ..SourceOptions::default()
    };
    let source = HfSource::open(dir.path(), &test).unwrap();
    let print = source.fingerprint(FingerprintMode::Full, &|_| {}).unwrap();
    assert_eq!(found.splits[0].fingerprint, Some(print));
    assert_eq!(source.num_samples(), 9);
}

#[test]
fn damage_is_reported_beside_what_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &uniform_rows(40, 8, 50), 4);
    let cut = dir.path().join("data-00001-of-00004.arrow");
    let bytes = fs::read(&cut).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 8]).unwrap();
    fs::remove_file(dir.path().join("data-00003-of-00004.arrow")).unwrap();
    let found = look(dir.path());
    let split = &found.splits[0];
    assert_eq!(split.rows, 20);
    assert_eq!(split.problems.len(), 2);
    assert_says(
        &split.problems[0],
        &["data-00001-of-00004.arrow", "end-of-stream marker"],
    );
    assert_says(&split.problems[1], &["first data-00003-of-00004.arrow"]);
    assert_eq!(found.suggested_command, None);
    assert_says(&found.to_string(), &["unreadable", "problem   "]);
}

#[test]
fn parquet_and_compressed_files_are_described_without_decoding() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join("arrow");
    let found = look(&fixtures.join("many_columns.parquet"));
    assert_eq!((found.kind, found.splits[0].rows), (DatasetKind::Parquet, 23));
    assert_says(
        &found.to_string(),
        &[
            "text: string",
            "input_ids: list<element: int32>  (can hold tokens)",
        ],
    );
    let found = look(&fixtures.join("compressed_zstd.arrow"));
    assert_says(
        &found.to_string(),
        &["compressed (zstd): decoded into a cache before it is read"],
    );
}

#[test]
fn a_path_that_is_no_dataset_is_refused_as_opening_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let error = inspect(dir.path(), &InspectOptions::default(), &|_| {})
        .unwrap_err()
        .to_string();
    assert_says(&error, &["is an empty directory"]);
}
