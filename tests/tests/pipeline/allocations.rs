//! Allocations of the whole process, counted: none in steady state (after the first batches, nothing allocates while
//! batches are assembled, delivered and given back), and what a live epoch of an order holds.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ceteris_loader::collate::HfCollator;
use ceteris_loader::pipeline::{DocumentRule, Loader, LoaderOptions, Marker, PageIn};
use ceteris_samplers::spec::OrderInput;
use ceteris_samplers::{Geometry, OrderSpec};

#[path = "toy.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
mod toy;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes allocated and not yet given back.
static LIVE: AtomicI64 = AtomicI64::new(0);
/// The counters are the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: hands every call on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn v26_a_live_epoch_holds_four_bytes_a_sample() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let n = 1_000_000;
    let geometry = Geometry {
        world_size: 8,
        micro_batch_size: 4,
        gradient_accumulation_steps: 1,
    };
    for (spec, bytes_a_sample) in [
        (r#"{"name":"fla","seed":42}"#, 4),
        (
            r#"{"name":"fla","seed":42,"dataset":[{"shuffle":{"seed":7}},{"shuffle":{"seed":8}}]}"#,
            4,
        ),
        (r#"{"name":"hf-trainer","seed":42}"#, 4),
        (r#"{"name":"torch-distributed","seed":42}"#, 4),
        (r#"{"name":"sequential"}"#, 0),
    ] {
        let spec: OrderSpec = serde_json::from_str(spec).unwrap();
        let before = LIVE.load(Ordering::Relaxed);
        let order = spec.build(&OrderInput::new(n, geometry)).unwrap();
        for number in [0, 1] {
            let epoch = order.epoch(number).unwrap();
            let held = LIVE.load(Ordering::Relaxed) - before;
            // What does not grow with the samples: the spec, the state of a generator, names.
            assert!(
                held <= bytes_a_sample * n as i64 + 16_384,
                "{spec}: epoch {number} holds {held} bytes"
            );
            drop(epoch);
        }
    }
}

#[test]
fn steady_state_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
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
            // Up to 3000 of the 5000 micro-steps of this epoch: the next epoch's index is not yet built. On a busy machine a
            // thread may still block for the first time, once each; what allocates as it goes does so in every window.
            let mut window = || {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                (0..1000).for_each(|_| step());
                ALLOCATIONS.load(Ordering::Relaxed) - before
            };
            let mut counts = vec![window()];
            while counts.len() < 3 && counts.last() != Some(&0) {
                counts.push(window());
            }
            assert!(
                counts.last() == Some(&0) && counts.iter().sum::<u64>() <= workers as u64 + 1,
                "workers {workers}, prefetch {prefetch}, {page_in:?}: {counts:?} allocations in 1000 micro-steps each"
            );
        }
    }
}
