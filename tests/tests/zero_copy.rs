//! Opening and reading allocate nothing in proportion to the tokens: counted by an allocator around the
//! system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// One test in this binary: other tests would allocate beside it.
#[test]
fn opening_and_reading_allocate_nothing_in_proportion_to_the_tokens() {
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
