//! Working memory of the operators: allocated once, sized by the plan.

use std::sync::{Mutex, MutexGuard};

use super::gemm::GemmScratch;
use super::matrix::{RowBlock, row_blocks};
use super::real::Real;
use super::tile::MAX_NR;
use crate::plan::Geometry;

/// What the operators of a plan need at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Values per worker.
    pub worker: usize,
    /// Values shared by all workers of an operator, for partial sums.
    pub shared: usize,
    /// Values of the largest B of a product, see [`GemmScratch::packed_len`].
    pub packed_b: usize,
}

impl Need {
    /// The larger of two, part by part.
    pub fn max(self, other: Need) -> Need {
        Need {
            worker: self.worker.max(other.worker),
            shared: self.shared.max(other.shared),
            packed_b: self.packed_b.max(other.packed_b),
        }
    }
}

/// Working memory, and the row blocks of the plan's geometry.
pub struct Work<T> {
    /// Of matrix products.
    pub gemm: GemmScratch<T>,
    /// Partial sums of one operator.
    pub shared: Mutex<Vec<T>>,
    /// All row blocks of a micro-batch.
    pub blocks: Vec<RowBlock>,
    /// Partial sums in f64: of the global norm, and of the rows of a chunk of logits.
    pub sums: Mutex<Vec<f64>>,
    workers: Vec<Mutex<Vec<T>>>,
}

/// Elements per partial sum of the global norm, and per task of elementwise operators.
pub const ELEMENTS: usize = 8192;

impl<T: Real> Work<T> {
    /// For a pool of `threads` workers; `largest` is the number of elements of the largest persistent buffer.
    pub fn new(threads: usize, need: Need, geometry: Geometry, largest: usize) -> Self {
        Work {
            gemm: GemmScratch::new(threads, need.packed_b),
            shared: Mutex::new(vec![T::ZERO; need.shared]),
            blocks: row_blocks(geometry.micro_batch_size, geometry.seq_length),
            sums: Mutex::new(vec![
                0.0;
                largest
                    .div_ceil(ELEMENTS)
                    .max(geometry.seq_length.next_multiple_of(MAX_NR))
            ]),
            workers: (0..threads)
                .map(|_| Mutex::new(vec![T::ZERO; need.worker]))
                .collect(),
        }
    }

    /// Runs `f` with this worker's memory. `f` must not start parallel work: a stolen task would wait for the memory
    /// that its own thread holds.
    pub fn with_worker<R>(&self, f: impl FnOnce(&mut [T]) -> R) -> R {
        let worker = rayon::current_thread_index().unwrap_or(0) % self.workers.len();
        let mut memory = lock(&self.workers[worker]);
        f(&mut memory)
    }
}

/// Takes working memory. No other operator can hold it, so this never waits; what a panic left there is overwritten.
pub fn lock<T>(memory: &Mutex<T>) -> MutexGuard<'_, T> {
    memory.lock().unwrap_or_else(|e| e.into_inner())
}

/// Cuts `n` values off the front of working memory.
pub fn take<'a, T>(memory: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    let (head, tail) = std::mem::take(memory).split_at_mut(n);
    *memory = tail;
    head
}

/// `gradient += Σ_blocks partial[block]`: for each sequence in ascending order, the blocks of the sequence are summed
/// in ascending order, starting from the first, and the sum is added. `partials` is `[blocks, n]`.
pub fn add_block_sums<T: Real>(
    blocks: &[RowBlock],
    partials: &mut [T],
    n: usize,
    mut gradient: impl FnMut(usize, T),
) {
    let mut at = 0;
    while at < blocks.len() {
        let sequence = blocks[at].sequence;
        let end = at + blocks[at..].iter().take_while(|b| b.sequence == sequence).count();
        let (first, rest) = partials[at * n..end * n].split_at_mut(n);
        for partial in rest.chunks_exact(n) {
            for (sum, &x) in first.iter_mut().zip(partial) {
                *sum += x;
            }
        }
        for (i, &sum) in first.iter().enumerate() {
            gradient(i, sum);
        }
        at = end;
    }
}
