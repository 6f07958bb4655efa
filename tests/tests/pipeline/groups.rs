//! Rows read side by side: the stream is that of rows read one by one, and failures name the sample they are about.

use std::sync::Arc;

use ceteris_loader::collate::HfCollator;
use ceteris_loader::pipeline::{Loader, LoaderOptions, PageIn};
use ceteris_loader::source::{GROUP, HfSource, Source, SourceOptions};
use ceteris_tests::datasets::{save_rows, uniform_rows};

use crate::stream::{quiet, run};
use crate::toy::{ToyOrder, entry};

const N: u64 = 203;
const T: usize = 20;

fn open(rows: &[Vec<i64>], vocab_size: Option<u32>) -> (tempfile::TempDir, Arc<HfSource>) {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), rows, 3);
    let options = SourceOptions {
        vocab_size,
        ..SourceOptions::default()
    };
    let source = HfSource::open(dir.path(), &options).unwrap();
    (dir, Arc::new(source))
}

fn start(source: &Arc<HfSource>, order: ToyOrder, page_in: PageIn, workers: usize) -> Loader {
    let options = LoaderOptions {
        workers,
        page_in,
        epochs: Some(2),
        collator: Arc::new(HfCollator { pad_token_id: None }),
        ..LoaderOptions::new(T)
    };
    Loader::new(source.clone(), Arc::new(order), quiet(options)).unwrap()
}

/// `PageIn::Always` reads rows one by one, `PageIn::Never` in groups wherever four are left of the micro-step.
#[test]
fn groups_change_nothing() {
    let rows = uniform_rows(N as usize, T, 30_000);
    let (_dir, source) = open(&rows, None);
    for micro_batch_size in [1, 2, 3, 4, 5, 7, 8, 9, 13, 32] {
        for world_size in [1, 2, 3] {
            let order = || ToyOrder::new(N, world_size, micro_batch_size, 1);
            let single = run(start(&source, order(), PageIn::Always, 2));
            for (_, _, ranks) in &single {
                for (_, ids, tokens) in ranks {
                    for (&id, row) in ids.iter().zip(tokens.chunks_exact(T)) {
                        assert!(
                            row.iter()
                                .map(|&t| i64::from(t))
                                .eq(rows[id as usize].iter().copied())
                        );
                    }
                }
            }
            for workers in [0, 1, 3] {
                let grouped = run(start(&source, order(), PageIn::Never, workers));
                assert!(
                    grouped == single,
                    "{micro_batch_size} rows, {world_size} ranks, {workers} workers"
                );
            }
        }
    }
}

#[test]
fn a_bad_token_in_a_group_is_named_as_in_a_single_read() {
    for slot in 0..2 * GROUP as u64 {
        let bad = entry(N, 0, 5 * 2 * GROUP as u64 + slot);
        let mut rows = uniform_rows(N as usize, T, 500);
        rows[bad as usize][13] = 502;
        let (_dir, source) = open(&rows, Some(501));
        let mut loader = start(
            &source,
            ToyOrder::new(N, 1, 2 * GROUP as u64, 1),
            PageIn::Never,
            1,
        );
        let error = loader.find_map(Result::err).unwrap().to_string();
        let file = source.file_of(bad).unwrap();
        let file = file.file_name().unwrap().to_string_lossy().into_owned();
        for part in [
            "micro-step 5 of epoch 0",
            &format!("sample {bad} (rank 0, slot {slot})"),
            &format!("row {bad}"),
            "position 13 is 502",
            &file,
        ] {
            assert!(error.contains(part), "no \"{part}\" in: {error}");
        }
    }
}
