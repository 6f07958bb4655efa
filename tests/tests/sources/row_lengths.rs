//! `seq_length`, ragged rows, truncation, and indices tables.

use ceteris_loader::source::{HfSource, OnRagged, Source, SourceOptions};
use ceteris_tests::datasets::{save_rows, uniform_rows, write_indices};

use super::{assert_says, read_all, refusal};

fn options(seq_length: usize) -> SourceOptions {
    SourceOptions {
        seq_length: Some(seq_length),
        ..SourceOptions::default()
    }
}

/// 30 rows of 8 tokens; row 4 has 5, row 17 has 11, row 23 none.
fn ragged() -> (tempfile::TempDir, Vec<Vec<i64>>) {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = uniform_rows(30, 8, 500);
    rows[4].truncate(5);
    rows[17].extend([1, 2, 3]);
    rows[23].clear();
    save_rows(dir.path(), &rows, 2);
    (dir, rows)
}

#[test]
fn rows_of_one_length_are_checked_against_seq_length() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &uniform_rows(20, 8, 500), 3);
    assert_eq!(
        HfSource::open(dir.path(), &options(8)).unwrap().sample_length(),
        Some(8)
    );
    assert_says(
        &refusal(dir.path(), &options(9)),
        &[
            "every row has 8 tokens, seq_length is 9",
            "--seq-length 8",
            "--on-ragged pad",
        ],
    );
    assert_says(
        &refusal(dir.path(), &options(5)),
        &[
            "every row has 8 tokens, seq_length is 5",
            "--seq-length 8",
            "--truncate",
        ],
    );
    let drop = SourceOptions {
        on_ragged: OnRagged::Drop,
        ..options(9)
    };
    assert_says(&refusal(dir.path(), &drop), &["no row has 9 tokens"]);
}

#[test]
fn ragged_rows_are_errors_that_name_the_first_one() {
    let (dir, _) = ragged();
    let message = refusal(dir.path(), &options(8));
    assert_says(
        &message,
        &[
            "row 4 (row 4 of ",
            "data-00000-of-00002.arrow",
            "has 5 tokens, seq_length is 8",
        ],
    );
    assert_says(
        &message,
        &[
            "of 30 rows 2 are shorter and 1 longer (0 to 11 tokens)",
            "--on-ragged drop",
            "--truncate",
        ],
    );
}

#[test]
fn ragged_rows_can_be_dropped() {
    let (dir, rows) = ragged();
    let source = HfSource::open(
        dir.path(),
        &SourceOptions {
            on_ragged: OnRagged::Drop,
            ..options(8)
        },
    )
    .unwrap();
    let kept: Vec<usize> = (0..30).filter(|&r| rows[r].len() == 8).collect();
    assert_eq!(
        (source.num_samples(), source.dropped_rows(), source.stored_rows()),
        (27, 3, 30)
    );
    assert_eq!(
        read_all(&source),
        kept.iter().map(|&r| rows[r].clone()).collect::<Vec<_>>()
    );
    assert_eq!(
        (0..27)
            .map(|id| source.stored_row(id) as usize)
            .collect::<Vec<_>>(),
        kept
    );
    assert_says(
        &source.warnings().join("\n"),
        &["3 of 30 rows do not have 8 tokens and are dropped (2 shorter, 1 longer)"],
    );
}

#[test]
fn short_rows_can_be_padded_but_long_ones_need_truncation() {
    let (dir, rows) = ragged();
    let pad = SourceOptions {
        on_ragged: OnRagged::Pad,
        pad_id: Some(0),
        ..options(8)
    };
    assert_says(
        &refusal(dir.path(), &pad),
        &[
            "row 17 (row 2 of ",
            "has 11 tokens",
            "0 are shorter and 1 longer",
            "--truncate",
        ],
    );
    let source = HfSource::open(
        dir.path(),
        &SourceOptions {
            truncate: true,
            ..pad
        },
    )
    .unwrap();
    let cut: Vec<Vec<i64>> = rows.iter().map(|r| r[..r.len().min(8)].to_vec()).collect();
    assert_eq!(read_all(&source), cut);
    assert_eq!(source.sample_len(17).unwrap(), 8);
    assert_eq!(source.sample_len(23).unwrap(), 0);
    assert_eq!(source.sample_length(), Some(8));
}

#[test]
fn truncation_alone_still_refuses_short_rows() {
    let (dir, _) = ragged();
    let message = refusal(
        dir.path(),
        &SourceOptions {
            truncate: true,
            ..options(8)
        },
    );
    assert_says(&message, &["row 4", "2 are shorter and 0 longer"]);
}

#[test]
fn without_seq_length_rows_keep_their_lengths() {
    let (dir, rows) = ragged();
    let source = HfSource::open(dir.path(), &SourceOptions::default()).unwrap();
    assert_eq!(read_all(&source), rows);
    assert_eq!(source.sample_length(), None);
}

#[test]
fn an_indices_table_is_applied_when_named() {
    let (dir, rows) = ragged();
    let indices: Vec<u64> = vec![29, 0, 0, 16, 5, 12];
    let path = dir.path().join("cache-0123.arrow");
    write_indices(&path, &indices);
    // Lying there is not enough.
    assert_eq!(
        HfSource::open(dir.path(), &SourceOptions::default())
            .unwrap()
            .num_samples(),
        30
    );
    let with = SourceOptions {
        indices: Some(path.clone()),
        ..SourceOptions::default()
    };
    let source = HfSource::open(dir.path(), &with).unwrap();
    assert_eq!(
        read_all(&source),
        indices
            .iter()
            .map(|&r| rows[r as usize].clone())
            .collect::<Vec<_>>()
    );
    assert_eq!(
        (0..6).map(|id| source.stored_row(id)).collect::<Vec<_>>(),
        indices
    );
    assert_eq!(source.files().last(), Some(&path));
    // Only the rows it names have to fit.
    HfSource::open(
        dir.path(),
        &SourceOptions {
            seq_length: Some(8),
            ..with.clone()
        },
    )
    .unwrap();
    write_indices(&path, &[3, 4, 5]);
    let drop = SourceOptions {
        seq_length: Some(8),
        on_ragged: OnRagged::Drop,
        ..with.clone()
    };
    let source = HfSource::open(dir.path(), &drop).unwrap();
    assert_eq!(
        (source.stored_row(0), source.stored_row(1), source.num_samples()),
        (3, 5, 2)
    );
    write_indices(&path, &[3, 30, 5]);
    assert_says(
        &refusal(dir.path(), &with),
        &[
            "cache-0123.arrow",
            "entry 1",
            "row 30, but the dataset has 30 rows",
        ],
    );
    write_indices(&path, &[]);
    assert_says(&refusal(dir.path(), &with), &["cache-0123.arrow", "empty"]);
    let wrong = SourceOptions {
        indices: Some(dir.path().join("data-00000-of-00002.arrow")),
        ..with
    };
    assert_says(
        &refusal(dir.path(), &wrong),
        &[
            "is no indices table",
            "here is id: int64, input_ids: list<item: int32>",
        ],
    );
}

#[test]
fn the_vocabulary_is_checked_at_the_read_and_by_a_scan() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = uniform_rows(3000, 8, 500);
    rows[2041][3] = 777;
    save_rows(dir.path(), &rows, 4);
    let source = HfSource::open(
        dir.path(),
        &SourceOptions {
            vocab_size: Some(778),
            ..options(8)
        },
    )
    .unwrap();
    let scan = source.scan(&|_| {}).unwrap();
    assert_eq!((scan.tokens, scan.max_token), (24_000, Some(777)));
    let source = HfSource::open(
        dir.path(),
        &SourceOptions {
            vocab_size: Some(777),
            ..options(8)
        },
    )
    .unwrap();
    source.read(2040, &mut [0; 8]).unwrap();
    let at_read = source.read(2041, &mut [0; 8]).unwrap_err().to_string();
    assert_says(
        &at_read,
        &[
            "data-00002-of-00004.arrow",
            "row 2041",
            "input_ids",
            "position 3 is 777",
            "0 to 776",
        ],
    );
    assert_eq!(source.scan(&|_| {}).unwrap_err().to_string(), at_read);
}
