//! Damaged Arrow files: whatever byte is changed or cut, the answer is an error or tokens, never a panic or a
//! wrong row count.

use std::path::Path;

use arrow_schema::DataType;
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_tests::datasets::{Layout, batches, file, stream, uniform_rows};
use proptest::prelude::*;

fn small(layout: Layout, as_file: bool) -> Vec<u8> {
    let mut rows = uniform_rows(11, 3, 50);
    if layout != Layout::FixedSizeList {
        rows[4].push(7);
    }
    let parts = batches(&rows, layout, &DataType::Int32, 4);
    if as_file { file(&parts) } else { stream(&parts) }
}

/// Opens and reads everything; `None` when refused at open.
fn survive(path: &Path, bytes: &[u8]) -> Option<u64> {
    // A new file each time: writing over an old one makes some file systems write through to the disk.
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).unwrap();
    let source = match HfSource::open(path, &SourceOptions::default()) {
        Ok(source) => source,
        Err(e) => {
            assert!(
                e.to_string().contains("damaged.arrow"),
                "the file is not named: {e}"
            );
            return None;
        }
    };
    let mut out = vec![0i32; 64];
    for id in 0..source.num_samples() {
        if let Ok(len) = source.sample_len(id) {
            assert!(len <= bytes.len());
            let _ = source.read(id, &mut out);
        }
    }
    Some(source.num_samples())
}

/// Every single flipped bit of every byte: the file is refused, or still holds its 11 rows.
#[test]
fn every_single_bit_flip_is_refused_or_keeps_the_row_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.arrow");
    for (layout, as_file) in [
        (Layout::List, false),
        (Layout::List, true),
        (Layout::LargeListView, false),
    ] {
        let good = small(layout, as_file);
        assert_eq!(survive(&path, &good), Some(11));
        let mut refused = 0;
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                match survive(&path, &bytes) {
                    None => refused += 1,
                    Some(rows) => assert_eq!(rows, 11, "{layout:?}: byte {at} bit {bit}"),
                }
            }
        }
        println!(
            "{layout:?}: {refused} of {} flips refused at open",
            good.len() * 8
        );
        assert!(refused > good.len());
    }
}

/// Cut anywhere, a stream or file is refused.
#[test]
fn every_cut_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.arrow");
    for as_file in [false, true] {
        for layout in [Layout::List, Layout::FixedSizeList, Layout::ListView] {
            let good = small(layout, as_file);
            let stride = if layout == Layout::List { 1 } else { 7 };
            for len in (0..good.len()).step_by(stride) {
                assert_eq!(
                    survive(&path, &good[..len]),
                    None,
                    "{layout:?}: cut to {len} of {}",
                    good.len()
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn many_changed_bytes_never_panic(
        kind in 0usize..10,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
        repeat in prop::option::of((any::<prop::sample::Index>(), 1usize..300)),
    ) {
        let layouts = [Layout::List, Layout::LargeList, Layout::FixedSizeList, Layout::ListView, Layout::LargeListView];
        let mut bytes = small(layouts[kind % 5], kind >= 5);
        for (at, value) in changes {
            let i = at.index(bytes.len());
            bytes[i] = value;
        }
        if let Some((at, len)) = repeat {
            let i = at.index(bytes.len());
            let piece: Vec<u8> = bytes[i..].iter().take(len).copied().collect();
            bytes.splice(i..i, piece);
        }
        if let Some(at) = cut {
            let i = at.index(bytes.len());
            bytes.truncate(i);
        }
        let dir = tempfile::tempdir().unwrap();
        survive(&dir.path().join("damaged.arrow"), &bytes);
    }
}
