//! Running a plan allocates nothing, once it has run a few times.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which say what failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use ceteris_kernels::conformance;
use ceteris_kernels::cpu::{self, Float};
use ceteris_kernels::plan::Section;

static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
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

/// A step that allocates for itself does so every time; the thread pool's queues (a block for every 63 sections, a
/// larger buffer when a thread falls behind) do so now and then, and later on a loaded machine. So: in a row of
/// steps, some allocate nothing.
#[test]
fn running_a_plan_allocates_nothing() {
    const RUNS: usize = 20;
    for case in conformance::all().unwrap() {
        let mut executor = cpu::executor(case.plan.clone(), Float::F32, 2).unwrap();
        case.load(executor.as_mut()).unwrap();
        let mut counted_step = || {
            COUNT.store(0, Ordering::Relaxed);
            Section::ALL.iter().for_each(|&s| executor.run(s).unwrap());
            COUNT.load(Ordering::Relaxed)
        };
        (0..3).for_each(|_| {
            counted_step();
        });
        let least = (0..RUNS).map(|_| counted_step()).min();
        assert_eq!(
            least,
            Some(0),
            "{}: allocations of the thriftiest step",
            case.name
        );
    }
}
