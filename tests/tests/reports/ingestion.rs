//! Reports about datasets on disk: V30 to V33.

use std::fs;
use std::path::Path;

use arrow_schema::DataType;
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_tests::datasets::{
    Layout, batch, batches, list, save_cache, save_rows, save_to_disk, stream, uniform_rows, write_json,
};
use ceteris_tests::tokens::{row, sha256_of_rows};
use serde_json::json;

fn refusal(path: &Path) -> String {
    match HfSource::open(path, &SourceOptions::default()) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(e) => e.to_string(),
    }
}

fn open(path: &Path) -> HfSource {
    HfSource::open(path, &SourceOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn hash(source: &dyn Source) -> String {
    sha256_of_rows(source, 0..source.num_samples()).expect("rows that can be read")
}

/// huggingface/datasets#2424 and others: a directory of another kind gave a cryptic file-not-found.
#[test]
fn v30_each_kind_of_wrong_directory_has_its_own_message() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let rows = uniform_rows(20, 4, 100);
    save_rows(&at("no_state"), &rows, 4);
    fs::remove_file(at("no_state").join("state.json")).unwrap();
    for name in ["train", "test"] {
        save_rows(&at("dict").join(name), &rows, 1);
    }
    write_json(
        &at("dict").join("dataset_dict.json"),
        &json!({"splits": ["train", "test"]}),
    );
    save_cache(
        &at("cache"),
        "json",
        &[
            ("train", vec![rows.clone(), rows.clone()]),
            ("validation", vec![rows]),
        ],
    );
    fs::create_dir(at("empty")).unwrap();
    let wanted: [(&str, &[&str]); 4] = [
        (
            "no_state",
            &[
                "data-00000-of-00004.arrow and 3 more",
                "no state.json",
                "copy or save it again",
            ],
        ),
        ("dict", &["DatasetDict", "splits train, test", "--split train"]),
        (
            "cache",
            &[
                "cache folder of load_dataset",
                "splits train, validation (3 files)",
                "--split train",
            ],
        ),
        ("empty", &["is an empty directory"]),
    ];
    let mut messages = Vec::new();
    for (name, parts) in wanted {
        let message = refusal(&at(name));
        assert!(
            message.contains(&at(name).display().to_string()),
            "the directory is not named: {message}"
        );
        for part in parts {
            assert!(message.contains(part), "no \"{part}\" in: {message}");
        }
        messages.push(message);
    }
    messages.sort();
    messages.dedup();
    assert_eq!(messages.len(), 4);
    // Other folders a download leaves.
    fs::create_dir_all(at("hub/blobs")).unwrap();
    fs::create_dir_all(at("hub/snapshots/abc")).unwrap();
    assert!(
        refusal(&at("hub")).contains("download folder of the Hugging Face hub"),
        "{}",
        refusal(&at("hub"))
    );
    fs::create_dir_all(at("x.incomplete")).unwrap();
    fs::write(at("x.incomplete").join("json-train.arrow"), "").unwrap();
    assert!(refusal(&at("x.incomplete")).contains("interrupted"));
    // The next step works.
    for (name, rows) in [("dict", 20), ("cache", 40)] {
        let options = SourceOptions {
            split: Some("train".to_owned()),
            ..SourceOptions::default()
        };
        assert_eq!(HfSource::open(&at(name), &options).unwrap().num_samples(), rows);
    }
}

/// huggingface/datasets PR#5268: saving twice with another shard count leaves a mix.
#[test]
fn v31_only_the_shards_that_state_json_lists_are_read() {
    let (mixed, clean) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    save_rows(mixed.path(), &uniform_rows(96, 8, 50), 8);
    let rows = uniform_rows(40, 8, 1000);
    save_rows(mixed.path(), &rows, 4);
    save_rows(clean.path(), &rows, 4);
    let source = open(mixed.path());
    assert_eq!(source.num_samples(), 40);
    assert_eq!(hash(&source), hash(&open(clean.path())));
    let [warning] = source.warnings() else {
        panic!("{:?}", source.warnings())
    };
    for i in 0..8 {
        assert!(
            warning.contains(&format!("data-0000{i}-of-00008.arrow")),
            "{warning}"
        );
    }
    assert!(
        warning.contains("lists 4 shards; 8 more .arrow files"),
        "{warning}"
    );
    assert!(open(clean.path()).warnings().is_empty());
    fs::remove_file(mixed.path().join("data-00003-of-00004.arrow")).unwrap();
    let message = refusal(mixed.path());
    assert!(message.contains("first data-00003-of-00004.arrow"), "{message}");
}

/// apache/arrow#44146: a file cut off fails late and unclearly, or not at all.
#[test]
fn v32_a_shard_that_is_cut_is_refused_at_open() {
    let rows = uniform_rows(100, 16, 1000);
    let saved = tempfile::tempdir().unwrap();
    save_rows(saved.path(), &rows, 2);
    let cache = tempfile::tempdir().unwrap();
    save_cache(
        cache.path(),
        "json",
        &[("train", vec![rows[..50].to_vec(), rows[50..].to_vec()])],
    );
    for (dir, name) in [
        (saved.path(), "data-00001-of-00002.arrow"),
        (cache.path(), "json-train-00001-of-00002.arrow"),
    ] {
        let path = dir.join(name);
        let whole = fs::read(&path).unwrap();
        open(dir);
        // The length of the same stream with its first 3 of 5 batches, without the marker that ends it.
        let three = stream(&batches(&rows[50..80], Layout::List, &DataType::Int32, 10)).len() - 8;
        let (half, end) = (whole.len() / 2, whole.len() - 8);
        for (what, cut, parts) in [
            (
                "half",
                half,
                vec![
                    "record batch ".to_owned(),
                    "expected up to its end".to_owned(),
                    format!("{half} bytes found"),
                ],
            ),
            (
                "last 8 bytes",
                end,
                vec![
                    format!("ends at byte {end} without the 8 bytes"),
                    "5 whole record batches with 50 rows".to_owned(),
                ],
            ),
            (
                "batch border",
                three,
                vec![
                    format!("ends at byte {three} without the 8 bytes"),
                    "3 whole record batches with 30 rows".to_owned(),
                ],
            ),
        ] {
            fs::write(&path, &whole[..cut]).unwrap();
            let message = refusal(dir);
            assert!(message.contains(name), "{what}: the file is not named: {message}");
            for part in &parts {
                assert!(message.contains(part), "{what}: no \"{part}\" in: {message}");
            }
            if name.starts_with("json") {
                assert!(
                    message.contains("dataset_info.json says 50 rows"),
                    "{what}: {message}"
                );
            }
        }
        // A cut that was closed with a marker again: only the row count tells, where one is recorded.
        fs::write(
            &path,
            stream(&batches(&rows[50..80], Layout::List, &DataType::Int32, 10)),
        )
        .unwrap();
        if name.starts_with("json") {
            assert!(
                refusal(dir).contains("holds 30 rows in 3 record batches; dataset_info.json says 50 rows")
            );
        }
        fs::write(&path, &whole).unwrap();
        open(dir);
    }
}

/// huggingface/datasets PR#6660 and others: only some integer widths could be used.
#[test]
fn v33_every_integer_width_reads_to_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let rows = uniform_rows(10_000, 16, 50_000);
    let mut hashes = Vec::new();
    for int in [
        DataType::Int32,
        DataType::Int64,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
    ] {
        for layout in [Layout::List, Layout::LargeList, Layout::FixedSizeList] {
            for nullable in [false, true] {
                let parts: Vec<_> = rows
                    .chunks(1000)
                    .map(|r| {
                        let nulls = |n: usize| nullable.then(|| vec![true; n]);
                        batch(0, list(r, layout, &int, nulls(r.len()), nulls(r.len() * 16)))
                    })
                    .collect();
                let at = dir.path().join(format!("{int}-{layout:?}-{nullable}"));
                save_to_disk(&at, &[parts], None);
                hashes.push((hash(&open(&at)), at));
            }
        }
    }
    assert_eq!(hashes.len(), 30);
    for (got, at) in &hashes {
        assert_eq!(*got, hashes[0].0, "{}", at.display());
    }
    // A null, a negative and a float are errors with row and column.
    let at = dir.path().join("bad");
    let of = |layout: Layout, int: &DataType, rows: &[Vec<i64>], nulls: Option<Vec<bool>>| {
        save_to_disk(&at, &[vec![batch(0, list(rows, layout, int, None, nulls))]], None);
    };
    let mut rows = uniform_rows(10, 4, 100);
    of(
        Layout::List,
        &DataType::UInt16,
        &rows,
        Some((0..40).map(|i| i != 27).collect()),
    );
    let message = refusal(&at);
    assert!(
        message.contains("row 6, column \"input_ids\": the value at position 3 is null"),
        "{message}"
    );
    rows[6][1] = -1;
    of(Layout::LargeList, &DataType::Int64, &rows, None);
    let message = row(&open(&at), 6).unwrap_err();
    assert!(
        message.contains("row 6, column \"input_ids\": the value at position 1 is -1"),
        "{message}"
    );
    of(Layout::List, &DataType::Float32, &rows, None);
    let message = refusal(&at);
    assert!(
        message.contains("column \"input_ids\" is list<item: float>, from row 0 on"),
        "{message}"
    );
}
