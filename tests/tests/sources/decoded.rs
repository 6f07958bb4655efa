//! Parquet and compressed Arrow: decoded once, checked at every use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ceteris_loader::source::{DatasetFingerprint, FingerprintMode, HfSource, Source, SourceOptions};

use super::{assert_says, read_all, refusal};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join("arrow")
        .join(name)
}

fn ragged() -> Vec<Vec<i64>> {
    let text = fs::read_to_string(fixture("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(json["ragged"].clone()).unwrap()
}

fn options(cache: &Path) -> SourceOptions {
    SourceOptions {
        decode_cache: Some(cache.to_owned()),
        ..SourceOptions::default()
    }
}

/// Decoded folders in the cache.
fn copies(cache: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(cache).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn a_folder_of_parquet_files_is_decoded_once_and_mapped() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (i, name) in ["snappy", "zstd", "gzip"].iter().enumerate() {
        fs::copy(
            fixture(&format!("{name}.parquet")),
            dir.path().join(format!("part-{i}.parquet")),
        )
        .unwrap();
    }
    let calls = Mutex::new(Vec::new());
    let progress =
        |what: &str, done: u64, total: u64| calls.lock().unwrap().push((what.to_owned(), done, total));
    let source = HfSource::open_with(dir.path(), &options(cache.path()), &progress).unwrap();
    let rows: Vec<Vec<i64>> = [ragged(), ragged(), ragged()].concat();
    assert_eq!(read_all(&source), rows);
    assert_eq!(
        calls.lock().unwrap().iter().map(|(_, done, _)| *done).max(),
        Some(69)
    );
    // The dataset is the parquet files: names in messages and the fingerprint are theirs.
    assert_eq!(source.file_of(24), Some(dir.path().join("part-1.parquet")));
    let print = DatasetFingerprint::compute(&source.files(), FingerprintMode::Full, &|_| {}).unwrap();
    assert_eq!(print.files[2].name, "part-2.parquet");
    // The second open does not decode.
    calls.lock().unwrap().clear();
    let again = HfSource::open_with(dir.path(), &options(cache.path()), &progress).unwrap();
    assert_eq!(read_all(&again), rows);
    assert!(calls.lock().unwrap().is_empty());
    assert_eq!(copies(cache.path()).len(), 1);
    // The copy is itself a saved dataset.
    let copy = HfSource::open(&copies(cache.path())[0], &SourceOptions::default()).unwrap();
    assert_eq!(read_all(&copy), rows);
}

#[test]
fn a_damaged_copy_is_made_again_and_a_changed_source_gets_its_own() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("a.parquet");
    fs::copy(fixture("zstd.parquet"), &path).unwrap();
    assert_eq!(
        read_all(&HfSource::open(&path, &options(cache.path())).unwrap()),
        ragged()
    );
    let copy = copies(cache.path())[0].join("data-00000-of-00001.arrow");
    let mut bytes = fs::read(&copy).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    fs::write(&copy, bytes).unwrap();
    assert_eq!(
        read_all(&HfSource::open(&path, &options(cache.path())).unwrap()),
        ragged()
    );
    fs::write(copies(cache.path())[0].join("ceteris-decoded.json"), "{").unwrap();
    assert_eq!(
        read_all(&HfSource::open(&path, &options(cache.path())).unwrap()),
        ragged()
    );
    fs::copy(fixture("fixed_size_list_int64_fixed.parquet"), &path).unwrap();
    let other = HfSource::open(&path, &options(cache.path())).unwrap();
    assert_eq!(other.sample_length(), Some(8));
    assert_eq!(copies(cache.path()).len(), 2);
}

#[test]
fn processes_that_decode_at_once_agree() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("a.parquet");
    fs::copy(fixture("lz4.parquet"), &path).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                assert_eq!(
                    read_all(&HfSource::open(&path, &options(cache.path())).unwrap()),
                    ragged()
                )
            });
        }
    });
    assert_eq!(
        copies(cache.path()).len(),
        1,
        "no temporary folder is left behind"
    );
}

#[test]
fn compressed_arrow_says_where_its_copy_is() {
    let cache = tempfile::tempdir().unwrap();
    let source = HfSource::open(&fixture("compressed_zstd.arrow"), &options(cache.path())).unwrap();
    assert_says(
        &source.warnings().join("\n"),
        &["compressed (zstd) and cannot be mapped", "decoded-"],
    );
    assert_eq!(source.token_type(), "list<item: int32>");
}

#[test]
fn damaged_parquet_and_compressed_arrow_are_refused_and_leave_nothing() {
    for (name, from) in [
        ("snappy.parquet", 4),
        ("compressed_lz4.arrow", 600),
        ("compressed_zstd.arrow", 600),
    ] {
        let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().join(name);
        let good = fs::read(fixture(name)).unwrap();
        let (mut refused, mut wrong) = (0, 0);
        for at in (from..good.len()).step_by(61) {
            let mut bytes = good.clone();
            bytes[at] ^= 0x41;
            fs::write(&path, bytes).unwrap();
            match HfSource::open(&path, &options(cache.path())) {
                Err(e) => {
                    refused += 1;
                    assert!(e.to_string().contains(name), "{e}");
                }
                // Damage in columns that are not read, or in tokens.
                Ok(source) => wrong += u64::from(source.num_samples() != 23),
            }
        }
        assert!(
            refused > 0 && wrong == 0,
            "{name}: {refused} refused, {wrong} with other rows"
        );
        let left = copies(cache.path())
            .iter()
            .filter(|p| p.to_string_lossy().contains("decoding-"))
            .count();
        assert_eq!(left, 0);
        for len in [0, 10, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..len]).unwrap();
            assert_says(&refusal(&path, &options(cache.path())), &[name]);
        }
    }
}

#[test]
fn a_parquet_column_that_is_not_there_or_no_token_column_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let of = |column: &str| {
        let options = SourceOptions {
            column: column.to_owned(),
            ..options(cache.path())
        };
        refusal(&fixture("many_columns.parquet"), &options)
    };
    assert_says(
        &of("input"),
        &["no column \"input\"; it has text: string, flag: bool"],
    );
    assert_says(
        &of("text"),
        &["column \"text\" is string, from row 0 on; token ids are a list of integers"],
    );
}

#[test]
fn splits_of_a_parquet_folder_are_asked_for_by_name() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(dir.path().join("data")).unwrap();
    for name in [
        "train-00000-of-00002",
        "train-00001-of-00002",
        "test-00000-of-00001",
    ] {
        fs::copy(
            fixture("none.parquet"),
            dir.path().join(format!("data/{name}.parquet")),
        )
        .unwrap();
    }
    assert_says(
        &refusal(dir.path(), &options(cache.path())),
        &["with the splits train, test (3 files)", "--split train"],
    );
    let train = SourceOptions {
        split: Some("train".to_owned()),
        ..options(cache.path())
    };
    assert_eq!(HfSource::open(dir.path(), &train).unwrap().num_samples(), 46);
}
