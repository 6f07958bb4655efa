//! Files as pyarrow writes them, in every layout: `tests/fixtures/arrow`, made by
//! `tests/scripts/make_arrow_fixtures.py`.

use std::path::{Path, PathBuf};

use arrow_schema::DataType;
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_tests::datasets::{Layout, batches, file, stream, uniform_rows};
use serde_json::Value;

use super::read_all;

fn fixtures() -> (PathBuf, Value) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join("arrow");
    let text = std::fs::read_to_string(dir.join("expected.json")).unwrap();
    (dir, serde_json::from_str(&text).unwrap())
}

#[test]
fn every_file_of_pyarrow_reads_the_same_tokens() {
    let (dir, expected) = fixtures();
    let cache = tempfile::tempdir().unwrap();
    let files = expected["files"].as_object().unwrap();
    assert!(files.len() > 50);
    for (name, about) in files {
        let options = SourceOptions {
            decode_cache: Some(cache.path().to_owned()),
            ..SourceOptions::default()
        };
        let source = HfSource::open(&dir.join(name), &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(source.token_type(), about["type"].as_str().unwrap(), "{name}");
        let rows: Vec<Vec<i64>> =
            serde_json::from_value(expected[about["rows"].as_str().unwrap()].clone()).unwrap();
        assert_eq!(read_all(&source), rows, "{name}");
        let lengths = source.row_lengths();
        assert_eq!(
            lengths.min,
            rows.iter().map(|r| r.len() as u64).min().unwrap(),
            "{name}"
        );
        assert_eq!(
            lengths.max,
            rows.iter().map(|r| r.len() as u64).max().unwrap(),
            "{name}"
        );
        assert_eq!(
            lengths.total,
            rows.iter().map(|r| r.len() as u64).sum::<u64>(),
            "{name}"
        );
    }
}

#[test]
fn a_short_buffer_gets_the_first_tokens_and_a_long_one_keeps_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let rows = uniform_rows(25, 6, 1000);
    let path = dir.path().join("rows.arrow");
    std::fs::write(&path, stream(&batches(&rows, Layout::List, &DataType::Int64, 7))).unwrap();
    let source = HfSource::open(&path, &SourceOptions::default()).unwrap();
    let mut out = [-5i32; 9];
    assert_eq!(source.read(3, &mut out[..4]).unwrap(), 4);
    assert_eq!(
        out[..4].iter().map(|&t| i64::from(t)).collect::<Vec<_>>(),
        rows[3][..4]
    );
    assert_eq!(source.read(24, &mut out).unwrap(), 6);
    assert_eq!(
        out[..6].iter().map(|&t| i64::from(t)).collect::<Vec<_>>(),
        rows[24]
    );
    assert_eq!(out[6..], [-5, -5, -5]);
    assert_eq!(source.read(0, &mut []).unwrap(), 0);
    assert!(
        source
            .read(25, &mut out)
            .unwrap_err()
            .to_string()
            .contains("sample 25 is out of range")
    );
    assert!(source.read(u64::MAX, &mut out).is_err());
}

/// Batches of very different sizes, empty ones among them: the look-up finds every row.
#[test]
fn rows_are_found_among_uneven_batches() {
    let dir = tempfile::tempdir().unwrap();
    let mut shards = Vec::new();
    let mut next = 0i64;
    for sizes in [
        vec![1, 500, 0, 3],
        vec![0, 0],
        vec![1; 70],
        vec![2000, 1, 1, 0, 7],
    ] {
        let parts = sizes.iter().map(|&n| {
            let rows: Vec<Vec<i64>> = (0..n).map(|i| vec![next + i, next + i + 1]).collect();
            next += n;
            ceteris_tests::datasets::batch(
                0,
                ceteris_tests::datasets::list(&rows, Layout::List, &DataType::Int32, None, None),
            )
        });
        shards.push(parts.collect::<Vec<_>>());
    }
    ceteris_tests::datasets::save_to_disk(dir.path(), &shards, None);
    let source = HfSource::open(dir.path(), &SourceOptions::default()).unwrap();
    assert_eq!(source.num_samples(), next as u64);
    for (id, row) in read_all(&source).into_iter().enumerate() {
        assert_eq!(row, [id as i64, id as i64 + 1]);
    }
    let files = source.files();
    assert_eq!(source.file_of(503), Some(files[0].clone()));
    assert_eq!(source.file_of(504), Some(files[2].clone()));
    assert_eq!(source.file_of(next as u64), None);
}

#[test]
fn file_and_stream_format_agree_for_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    let rows = uniform_rows(40, 5, 100);
    for layout in [
        Layout::List,
        Layout::LargeList,
        Layout::FixedSizeList,
        Layout::ListView,
        Layout::LargeListView,
    ] {
        let parts = batches(&rows, layout, &DataType::UInt16, 9);
        for (name, bytes) in [("stream", stream(&parts)), ("file", file(&parts))] {
            let path = dir.path().join(format!("{layout:?}-{name}.arrow"));
            std::fs::write(&path, bytes).unwrap();
            let source = HfSource::open(&path, &SourceOptions::default()).unwrap();
            assert_eq!(read_all(&source), rows, "{layout:?} {name}");
            assert_eq!(source.sample_length(), Some(5));
        }
    }
}
