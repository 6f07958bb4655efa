//! Running a plan allocates nothing, once it has run a few times.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use ceteris_kernels::conformance;
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::plan::Section;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The only allocation left is the thread pool's own: a block of its queue for every 63 sections that are started.
#[test]
fn running_a_plan_allocates_nothing() {
    const RUNS: usize = 20;
    for case in conformance::all().unwrap() {
        let mut executor = cpu::executor(case.plan.clone(), Float::F32, 2).unwrap();
        case.load(executor.as_mut()).unwrap();
        let mut step = || Section::ALL.iter().for_each(|&s| executor.run(s).unwrap());
        (0..3).for_each(|_| step());
        COUNT.store(0, Ordering::Relaxed);
        LARGEST.store(0, Ordering::Relaxed);
        (0..RUNS).for_each(|_| step());
        let (count, largest) = (COUNT.load(Ordering::Relaxed), LARGEST.load(Ordering::Relaxed));
        let allowed = RUNS * Section::ALL.len() / 60 + 2;
        assert!(
            count <= allowed && largest <= 2048,
            "{}: {count} allocations, largest {largest}",
            case.name
        );
    }
}
