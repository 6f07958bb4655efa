//! Files that change while they are mapped: errors, never a signal.

use std::fs::{File, OpenOptions};

use ceteris_loader::source::{HfSource, Source, SourceError, SourceOptions};
use ceteris_tests::datasets::{save_rows, uniform_rows};

use super::assert_says;

#[test]
fn a_shard_cut_under_the_map_fails_its_reads_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let rows = uniform_rows(400, 512, 30_000);
    save_rows(dir.path(), &rows, 2);
    let source = HfSource::open(dir.path(), &SourceOptions::default()).unwrap();
    source.check_unchanged().unwrap();
    let cut = dir.path().join("data-00001-of-00002.arrow");
    OpenOptions::new()
        .write(true)
        .open(&cut)
        .unwrap()
        .set_len(8192)
        .unwrap();
    let error = source.check_unchanged().unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }));
    assert_says(
        &error.to_string(),
        &["data-00001-of-00002.arrow", "bytes at open, 8192 bytes now"],
    );
    // Many threads meet the lost pages at once.
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (source, rows) = (&source, &rows);
            scope.spawn(move || {
                let mut out = vec![0i32; 512];
                for i in 0..400u64 {
                    let id = (i * 7 + thread * 50) % 400;
                    match source.read(id, &mut out) {
                        Ok(n) => assert_eq!(
                            out[..n].iter().map(|&t| i64::from(t)).collect::<Vec<_>>(),
                            rows[id as usize]
                        ),
                        Err(e) => {
                            assert!(id >= 200, "sample {id} of the whole shard failed: {e}");
                            assert_says(
                                &e.to_string(),
                                &["data-00001-of-00002.arrow", "changed while it was in use"],
                            );
                        }
                    }
                }
            });
        }
    });
    assert!(source.read(399, &mut [0; 512]).is_err());
}

#[test]
fn a_rewritten_shard_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &uniform_rows(40, 8, 30_000), 1);
    let source = HfSource::open(dir.path(), &SourceOptions::default()).unwrap();
    let path = dir.path().join("data-00000-of-00001.arrow");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(later)
        .unwrap();
    assert_says(
        &source.check_unchanged().unwrap_err().to_string(),
        &["written to after it was opened"],
    );
}

#[test]
fn a_removed_dataset_can_still_be_read_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let rows = uniform_rows(40, 8, 30_000);
    save_rows(dir.path(), &rows, 2);
    let source = HfSource::open(dir.path(), &SourceOptions::default()).unwrap();
    drop(dir);
    source.check_unchanged().unwrap();
    assert_eq!(super::read_all(&source), rows);
}
