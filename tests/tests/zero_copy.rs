//! Opening and reading allocate nothing in proportion to the tokens: counted by an allocator around the
//! system's.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arrow_schema::DataType;
use ceteris_loader::source::{HfSource, Source, SourceOptions};
use ceteris_tests::datasets::{self, batches, save_to_disk, uniform_rows};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes held at most above the start, and allocator calls.
fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let (live, calls) = (LIVE.load(Ordering::SeqCst), CALLS.load(Ordering::SeqCst));
    PEAK.store(live, Ordering::SeqCst);
    let value = work();
    (
        value,
        PEAK.load(Ordering::SeqCst) - live,
        CALLS.load(Ordering::SeqCst) - calls,
    )
}

/// One test in this binary: others would allocate and read beside it.
#[test]
fn opening_and_reading_allocate_nothing_in_proportion_to_the_tokens() {
    equal_batches_of_longer_rows_cost_no_more();
    a_hundred_shards_of_half_a_gigabyte_cost_their_headers_and_offsets();
}

/// 100 shards of 500 MB as `datasets` writes rows of 2048 int32, their tokens left as holes in the files.
fn a_hundred_shards_of_half_a_gigabyte_cost_their_headers_and_offsets() {
    const SHARDS: usize = 100;
    const BATCHES: u64 = 61;
    let dir = tempfile::tempdir().unwrap();
    let rows = vec![vec![0i64; 2048]; 1000];
    let whole = datasets::stream(&batches(&rows, datasets::Layout::List, &DataType::Int32, 1000));
    let one_row = datasets::stream(&batches(&rows[..1], datasets::Layout::List, &DataType::Int32, 1));
    // The schema is what both streams begin with.
    let same = whole.iter().zip(&one_row).take_while(|(a, b)| a == b).count();
    let schema_len = 8 + u32::from_le_bytes(whole[4..8].try_into().unwrap()) as usize;
    assert!(schema_len <= same);
    let schema = &whole[..schema_len];
    // Of each batch the header and what stands before the tokens are written.
    let message = &whole[schema.len()..whole.len() - 8];
    let head = &message[..message.len() - 1000 * 2048 * 4];
    let names: Vec<String> = (0..SHARDS)
        .map(|i| format!("data-{i:05}-of-{SHARDS:05}.arrow"))
        .collect();
    for name in &names {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.write_all_at(schema, 0).unwrap();
        let mut at = schema.len() as u64;
        for _ in 0..BATCHES {
            file.write_all_at(head, at).unwrap();
            at += message.len() as u64;
        }
        file.write_all_at(&whole[whole.len() - 8..], at).unwrap();
    }
    let files: Vec<_> = names.iter().map(|n| serde_json::json!({"filename": n})).collect();
    datasets::write_json(
        &dir.path().join("state.json"),
        &serde_json::json!({"_data_files": files}),
    );
    let options = SourceOptions {
        seq_length: Some(2048),
        ..SourceOptions::default()
    };
    let (before, start) = (bytes_read(), Instant::now());
    let (source, peak, _) = counted(|| HfSource::open(dir.path(), &options).unwrap());
    let (read, time) = (bytes_read() - before, start.elapsed());
    let batches = SHARDS as u64 * BATCHES;
    assert_eq!(
        (source.num_samples(), source.record_batches()),
        (batches * 1000, batches)
    );
    println!(
        "{} GB in {batches} record batches: opened in {time:?}, {read} bytes read, {peak} bytes held at most",
        whole.len() as u64 * batches / 1_000_000_000
    );
    assert!(read < batches * 40_000, "{read} bytes read");
    assert!(peak < 3 << 20, "{peak} bytes held");
    let mut out = [1i32; 2048];
    source.read(batches * 1000 - 1, &mut out).unwrap();
    assert!(out.iter().all(|&t| t == 0));
}

/// Bytes this process asked the system to read, so far.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").expect("a Linux system");
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("rchar: "))
        .expect("rchar");
    line.parse().expect("a number")
}

fn equal_batches_of_longer_rows_cost_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut peaks = Vec::new();
    for (layout, int) in [
        (datasets::Layout::List, DataType::Int32),
        (datasets::Layout::LargeList, DataType::Int64),
        (datasets::Layout::List, DataType::UInt16),
    ] {
        let mut sizes = Vec::new();
        // The same batches and rows, 16 times the tokens: the same memory.
        for len in [128usize, 2048] {
            let path = dir.path().join(format!("{layout:?}-{int}-{len}"));
            let shard = batches(&uniform_rows(2000, len, 30_000), layout, &int, 250);
            save_to_disk(&path, &[shard.clone(), shard], None);
            let options = SourceOptions {
                seq_length: Some(len),
                ..SourceOptions::default()
            };
            let (source, peak, _) = counted(|| HfSource::open(&path, &options).unwrap());
            assert_eq!(source.num_samples(), 4000);
            sizes.push(peak);
            let mut out = vec![0i32; len];
            source.read(0, &mut out).unwrap();
            let (sum, peak, calls) = counted(|| {
                let mut sum = 0i64;
                for id in 0..4000u64 {
                    source.read(id * 1237 % 4000, &mut out).unwrap();
                    sum += i64::from(out[0]);
                }
                source.will_need(&[1, 2, 3999]);
                sum
            });
            assert!(sum > 0);
            assert_eq!((peak, calls), (0, 0), "reading allocates nothing");
        }
        let bytes = 4000 * 2048 * int.primitive_width().unwrap();
        println!("{layout:?} of {int}: {bytes} bytes of tokens, {sizes:?} bytes held at most while opening");
        // Threads and windows: some hundred kilobytes, whatever the tokens.
        assert!(sizes.iter().all(|&s| s < 1 << 20), "{sizes:?}");
        assert!(sizes[1] < sizes[0] + (64 << 10), "{sizes:?}");
        peaks.extend(sizes);
    }
    assert_eq!(peaks.len(), 6);
}
