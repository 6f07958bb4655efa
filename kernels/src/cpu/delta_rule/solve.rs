//! Triangular systems of a chunk, by forward and backward substitution in blocks of [`SOLVE`] rows.

use pulp::Simd;

use crate::cpu::gemm::{Factor, Into, gemm_small};
use crate::cpu::matrix::{Mat, MatMut};
use crate::cpu::real::Real;
use crate::ops::CHUNK;

/// Rows per block of the triangular solve.
const SOLVE: usize = 16;

/// `x ← (I + a)^-1 x`, a strictly lower triangular (stride [`CHUNK`]), x `[L, V]` dense.
#[inline(always)]
pub(super) fn solve<T: Real, S: Simd>(simd: S, a: &[T], x: &mut [T], len: usize, v: usize, tail: &mut [T]) {
    for first in (0..len).step_by(SOLVE) {
        let rows = SOLVE.min(len - first);
        let (done, rest) = x.split_at_mut(first * v);
        if first > 0 {
            let left = Mat::new(&a[first * CHUNK..], rows, first, CHUNK);
            let to = MatMut::dense(&mut rest[..rows * v], v);
            gemm_small(
                simd,
                Factor::plain(left),
                Mat::dense(done, v),
                to,
                Into::Sub,
                tail,
            );
        }
        for t in 1..rows {
            let (before, row) = rest.split_at_mut(t * v);
            let weights = &a[(first + t) * CHUNK + first..][..t];
            for (before, &w) in before.chunks_exact(v).zip(weights) {
                row[..v]
                    .iter_mut()
                    .zip(before)
                    .for_each(|(y, &x)| *y = (-w).mul_add(x, *y));
            }
        }
    }
}

/// `x ← (I + a)^-T x`.
#[inline(always)]
pub(super) fn solve_transposed<T: Real, S: Simd>(
    simd: S,
    a: &[T],
    x: &mut [T],
    len: usize,
    v: usize,
    tail: &mut [T],
) {
    for first in (0..len).step_by(SOLVE).rev() {
        let rows = SOLVE.min(len - first);
        let end = first + rows;
        let (head, done) = x.split_at_mut(end * v);
        let block = &mut head[first * v..];
        if end < len {
            let below = Mat::new(&a[end * CHUNK..], len - end, CHUNK, CHUNK).columns_at(first, rows);
            let done = Mat::dense(&done[..(len - end) * v], v);
            gemm_small(
                simd,
                Factor::transposed(below),
                done,
                MatMut::dense(block, v),
                Into::Sub,
                tail,
            );
        }
        for t in (0..rows - 1).rev() {
            let (row, after) = block[t * v..].split_at_mut(v);
            for (s, after) in after.chunks_exact(v).enumerate() {
                let w = a[(first + t + 1 + s) * CHUNK + first + t];
                row.iter_mut()
                    .zip(after)
                    .for_each(|(y, &x)| *y = (-w).mul_add(x, *y));
            }
        }
    }
}
