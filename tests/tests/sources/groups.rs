//! Samples read side by side are those read one by one, and a group that cannot be read so says no more than that.

use std::fs::OpenOptions;
use std::sync::Arc;

use ceteris_loader::source::{ConcatSource, GROUP, HfSource, OnRagged, Source, SourceOptions};
use ceteris_tests::datasets::{save_rows, uniform_rows};

fn open(rows: &[Vec<i64>], shards: usize, options: &SourceOptions) -> (tempfile::TempDir, HfSource) {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), rows, shards);
    let source = HfSource::open(dir.path(), options).unwrap();
    (dir, source)
}

/// The first `n` tokens of each, if the group can be read.
fn group(source: &dyn Source, ids: [u64; GROUP], n: usize) -> Option<Vec<Vec<i64>>> {
    let mut out = vec![vec![-5i32; n]; GROUP];
    let mut rest = out.iter_mut();
    let rows = std::array::from_fn(|_| &mut rest.next().unwrap()[..]);
    source.read_group(ids, rows).then(|| {
        out.iter()
            .map(|row| row.iter().map(|&t| i64::from(t)).collect())
            .collect()
    })
}

#[test]
fn a_group_holds_what_each_read_gives() {
    let rows = uniform_rows(103, 37, 60_000);
    let (_dir, source) = open(&rows, 4, &SourceOptions::default());
    for k in 0..200u64 {
        let ids: [u64; GROUP] = std::array::from_fn(|i| (k * 41 + i as u64 * (k % 30)) % 103);
        for n in [0, 1, 16, 33, 37] {
            ids.iter().for_each(|&id| source.read_soon(id));
            let expected: Vec<Vec<i64>> = ids.iter().map(|&id| rows[id as usize][..n].to_vec()).collect();
            assert_eq!(group(&source, ids, n), Some(expected), "{ids:?} of {n}");
        }
    }
    // Rows have 37 tokens, the dataset 103 rows; asking ahead for one that is not there does nothing.
    assert_eq!(group(&source, [0, 1, 2, 3], 38), None);
    assert_eq!(group(&source, [0, 1, 2, 103], 37), None);
    assert_eq!(group(&source, [u64::MAX, 1, 2, 3], 37), None);
    source.read_soon(103);
    source.read_soon(u64::MAX);
    let (mut long, mut short) = ([[0i32; 8]; 3], [0i32; 7]);
    let [a, b, c] = &mut long;
    assert!(
        !source.read_group([0, 1, 2, 3], [a, b, c, &mut short]),
        "rooms of two lengths"
    );
}

#[test]
fn a_group_with_a_short_row_or_a_bad_token_is_left_to_single_reads() {
    let mut rows = uniform_rows(40, 20, 500);
    rows[7].truncate(19);
    rows[30][18] = 501;
    let options = SourceOptions {
        seq_length: Some(20),
        on_ragged: OnRagged::Pad,
        pad_id: Some(0),
        vocab_size: Some(501),
        ..SourceOptions::default()
    };
    let (_dir, source) = open(&rows, 2, &options);
    for at in 0..GROUP {
        let with = |id| std::array::from_fn(|i| if i == at { id } else { 10 + i as u64 });
        assert!(group(&source, with(8), 20).is_some());
        assert_eq!(group(&source, with(7), 20), None);
        assert!(group(&source, with(7), 19).is_some());
        assert_eq!(group(&source, with(30), 20), None);
        assert!(group(&source, with(30), 18).is_some());
    }
    let error = source.read(30, &mut [0; 20]).unwrap_err().to_string();
    assert!(error.contains("position 18 is 501"), "{error}");
}

#[test]
fn a_group_with_a_lost_row_is_never_delivered() {
    let rows = uniform_rows(400, 512, 30_000);
    let (dir, source) = open(&rows, 2, &SourceOptions::default());
    OpenOptions::new()
        .write(true)
        .open(dir.path().join("data-00001-of-00002.arrow"))
        .unwrap()
        .set_len(8192)
        .unwrap();
    // Many threads meet the lost pages at once.
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (source, rows) = (&source, &rows);
            scope.spawn(move || {
                for k in 0..200u64 {
                    let whole: [u64; GROUP] =
                        std::array::from_fn(|i| (k * 7 + thread * 50 + i as u64 * 11) % 200);
                    let expected: Vec<Vec<i64>> = whole.iter().map(|&id| rows[id as usize].clone()).collect();
                    assert_eq!(group(source, whole, 512), Some(expected));
                    let mut lost = whole;
                    lost[(k % 4) as usize] = 399 - k % 100;
                    lost.iter().for_each(|&id| source.read_soon(id));
                    assert_eq!(group(source, lost, 512), None);
                }
            });
        }
    });
}

#[test]
fn groups_of_datasets_put_together_are_of_one_of_them() {
    let (first, second) = (uniform_rows(10, 24, 500), uniform_rows(12, 24, 900));
    let (_a, one) = open(&first, 1, &SourceOptions::default());
    let (_b, two) = open(&second, 1, &SourceOptions::default());
    let both = ConcatSource::new(vec![
        ("one".to_owned(), Arc::new(one) as Arc<dyn Source>),
        ("two".to_owned(), Arc::new(two)),
    ])
    .unwrap();
    let of = |rows: &[Vec<i64>], ids: [usize; GROUP]| Some(ids.map(|id| rows[id].clone()).to_vec());
    assert_eq!(group(&both, [9, 0, 4, 4], 24), of(&first, [9, 0, 4, 4]));
    assert_eq!(group(&both, [10, 21, 15, 11], 24), of(&second, [0, 11, 5, 1]));
    assert_eq!(group(&both, [9, 10, 11, 12], 24), None);
    assert_eq!(group(&both, [19, 20, 21, 22], 24), None);
    (0..30).for_each(|id| both.read_soon(id));
}
