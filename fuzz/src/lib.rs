//! What must hold for any bytes at all in the files that come from elsewhere: an error or values, never a panic, and no
//! allocation from a count that the file does not bear out.
//!
//! Every reader takes a path, as users give one, so each input becomes a file. Set TMPDIR to a folder in memory.

use std::path::PathBuf;
use std::sync::LazyLock;

use ceteris_loader::index::npy::NpyFile;
use ceteris_loader::order_file;
use ceteris_loader::source::megatron::{Check, IndexedDataset};
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_samplers::OrderSpec;
use ceteris_samplers::orders::file::FileOrder;
use ceteris_samplers::orders::megatron_epochs::GptIndexSpec;
use ceteris_samplers::orders::megatron_index::GptIndex;
use tempfile::TempDir;

/// Values asked of one file at most: a small file can name more tokens than are worth reading.
const MOST: u64 = 256;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder for files"));

/// Writes a file of this name, new each time, since readers map theirs.
fn put(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(name);
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).expect("the folder takes files");
    path
}

/// Megatron's `.idx`: refused with an error, or sequences that can be read, indexed and copied.
pub fn idx(bytes: &[u8]) {
    let index = put("data.idx", bytes);
    // Half the inputs get few tokens, so that sequences end behind the file.
    put(
        "data.bin",
        &[1; 4096][..if bytes.len().is_multiple_of(2) { 4096 } else { 64 }],
    );
    let prefix = index.with_extension("");
    let Ok(quick) = IndexedDataset::open(&prefix, Check::Quick) else {
        assert!(
            IndexedDataset::open(&prefix, Check::Full).is_err(),
            "a full check allows less"
        );
        return;
    };
    let index = quick.index();
    for i in 0..index.num_sequences().min(MOST) {
        let _ = index.sequence(i);
        let _ = index.mode(i);
        let _ = quick.document_of(i);
    }
    for i in 0..index.num_documents().min(MOST) {
        let _ = index.bound(i);
        let _ = quick.sequences_of(i);
    }
    let checked = quick.validate();
    if let Ok(totals) = &checked {
        assert!(
            totals.tokens <= quick.bin_bytes(),
            "tokens that the file does not hold"
        );
    }
    let mut tokens = [0i32; 64];
    for id in 0..quick.num_samples().min(MOST) {
        if let Ok(length) = quick.sample_len(id) {
            if checked.is_ok() {
                assert!(length as u64 <= quick.bin_bytes());
            }
            let _ = quick.read(id, &mut tokens);
            let _ = quick.read_tokens(id, length as u64 / 2, &mut tokens[..1]);
        }
    }
    let (Ok(lengths), Ok(bounds)) = (index.lengths(), index.bounds()) else {
        return;
    };
    assert_eq!(lengths.len() as u64, index.num_sequences());
    assert!(bounds.len() <= bytes.len());
    for (sequence_length, add_extra_token) in [(1, false), (7, true)] {
        let spec = GptIndexSpec {
            sequence_length,
            add_extra_token,
            random_seed: 1234,
            num_samples: checked.is_ok().then_some(5),
            drop_last_partial_sequence: bytes.len().is_multiple_of(3),
        };
        // Without the check lengths may claim more samples than memory holds: that must be an error too, but filling
        // gigabytes is slow, so it is left to checked files.
        if checked.is_ok()
            && let Ok(built) = GptIndex::build(&lengths, 0..lengths.len() as u64, &spec)
        {
            for entry in 0..built.len().min(MOST) {
                let Ok(parts) = built.parts(entry, add_extra_token) else {
                    panic!("sample {entry} of an index that was just built");
                };
                parts.for_each(|part| assert!(part.is_ok()));
            }
        }
    }
}

/// Arrow files, stream and file format: refused, or rows that can be read.
pub fn arrow(bytes: &[u8]) {
    let path = put("data.arrow", bytes);
    let Ok(source) = HfSource::open(&path, &SourceOptions::default()) else {
        return;
    };
    let mut tokens = [0i32; 64];
    for id in 0..source.num_samples().min(MOST) {
        if let Ok(length) = source.sample_len(id) {
            // A row of nulls takes a bit a value, and nothing takes less.
            assert!(length <= 8 * bytes.len(), "row {id} is longer than the file");
            let _ = source.read(id, &mut tokens);
        }
    }
}

/// `.npy` files, as index caches and as lists of rows: refused, or the values that their header counts.
pub fn npy(bytes: &[u8]) {
    let path = put("list.npy", bytes);
    if let Ok(array) = NpyFile::open(&path) {
        assert!(array.len() <= bytes.len() as u64);
        let mut values = 0u64;
        array
            .for_each(|_| values += 1)
            .expect("a file that was opened reads");
        assert_eq!(values, array.header().shape.iter().product::<u64>());
    }
    if let Ok(array) = NpyFile::open(&path)
        && let Some(array) = array.array::<[u32; 2]>()
    {
        assert!(
            array
                .len()
                .checked_sub(1)
                .is_none_or(|last| array.get(last).is_some())
        );
        assert_eq!(array.get(array.len()), None);
    }
    let spec = serde_json::json!({"name": "file", "path": path});
    let Ok(spec) = serde_json::from_value::<OrderSpec>(spec) else {
        panic!("a spec of the order `file`")
    };
    let Some(order) = spec.downcast::<FileOrder>() else {
        panic!("the order `file`")
    };
    for num_samples in [0, 10, 1 << 20] {
        let _ = order_file::read(order, num_samples);
    }
}
