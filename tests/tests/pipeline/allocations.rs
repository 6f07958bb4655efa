//! No allocation in steady state: after the first batches, nothing in the process allocates while batches are
//! assembled, delivered and given back. A test of its own process, as it counts every thread's allocations.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ceteris_loader::collate::HfCollator;
use ceteris_loader::pipeline::{DocumentRule, Loader, LoaderOptions, Marker, PageIn};

#[path = "toy.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod toy;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: hands every call on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn steady_state_allocates_nothing() {
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "the counter counts");
    for (workers, prefetch) in [(0, 1), (1, 1), (3, 4), (8, 16)] {
        for page_in in [PageIn::Auto, PageIn::Always] {
            let options = LoaderOptions {
                workers,
                prefetch,
                page_in,
                fingerprints: true,
                collator: Arc::new(HfCollator {
                    pad_token_id: Some(0),
                }),
                documents: Some(DocumentRule::new(Marker::Bos(1))),
                ..LoaderOptions::new(64)
            };
            let mut source = toy::ToySource::new(40_000, 64);
            // Threads allocate a little the first time they block: slow reads make the consumer block, then a pause of
            // the consumer makes the workers block.
            let slow = |k| {
                (
                    toy::entry(40_000, 0, k),
                    toy::Trouble::Sleep(Duration::from_micros(300)),
                )
            };
            source.trouble = (0..200 * 8).step_by(8).map(slow).collect();
            let order = Arc::new(toy::ToyOrder::new(40_000, 2, 4, 2));
            let mut loader = Loader::new(Arc::new(source), order, options).unwrap();
            let mut step = || drop(loader.next_batch().unwrap().unwrap());
            (0..300).for_each(|_| step());
            // Long enough for every worker to stop spinning and sleep, also on a busy machine.
            std::thread::sleep(Duration::from_millis(700));
            (0..100).for_each(|_| step());
            (0..600).for_each(|_| step());
            // 1000 of the 5000 micro-steps of this epoch: the next epoch's index is not yet built.
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..1000).for_each(|_| step());
            let after = ALLOCATIONS.load(Ordering::Relaxed);
            assert_eq!(
                after - before,
                0,
                "workers {workers}, prefetch {prefetch}, {page_in:?}"
            );
        }
    }
}
