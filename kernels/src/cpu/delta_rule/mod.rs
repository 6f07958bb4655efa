//! CPU: the chunked gated delta rule.
//!
//! One task per document and key head walks the chunks in order (backwards in the backward pass) for the value heads
//! of its group. Decays are differences of cumulative sums, formed in f64 and rounded once, so that a strong decay
//! early in a chunk does not cost later tokens their precision; no exponential has a positive argument. The unit
//! triangular system is solved by forward substitution in blocks of 16 rows, not by forming an inverse.
//!
//! Memory per worker: a few `64 x 64`, `64 x V`, `K x 64` and `K x V` matrices.

use pulp::Simd;

mod backward;
mod forward;
mod solve;

pub use backward::delta_rule_backward;
pub use forward::delta_rule;

use super::gemm::{Factor, Into, SMALL_TAIL, gemm_small};
use super::matrix::{Mat, MatMut};
use super::real::Real;
use super::work::Need;
use crate::ops::{self, CHUNK, DeltaRuleShape};

/// Working memory of [`delta_rule`].
pub fn need(shape: &DeltaRuleShape) -> Need {
    let (k, v) = (shape.key_dim, shape.value_dim);
    let worker = SMALL_TAIL + k * CHUNK + 4 * CHUNK * CHUNK + 2 * CHUNK * v + k * v;
    Need {
        worker,
        ..Need::default()
    }
}

/// Working memory of [`delta_rule_backward`].
pub fn backward_need(shape: &DeltaRuleShape) -> Need {
    let (k, v) = (shape.key_dim, shape.value_dim);
    let group = shape.value_heads / shape.key_heads;
    let worker =
        SMALL_TAIL + k * CHUNK + 8 * CHUNK * CHUNK + 4 * CHUNK * v + 3 * CHUNK * k + (2 + group) * k * v;
    Need {
        worker,
        ..Need::default()
    }
    .max(need(shape))
}

/// Matrix views of one document and key head: queries, keys, and per value head the rest.
#[derive(Clone, Copy)]
struct Inputs<'a, T> {
    q: Mat<'a, T>,
    k: Mat<'a, T>,
    v: Mat<'a, T>,
    g: Mat<'a, T>,
    beta: Mat<'a, T>,
    initial: Option<&'a [T]>,
    scale: T,
    shape: DeltaRuleShape,
}

/// What a chunk needs of one value head: decays.
struct Decays<T> {
    /// `exp(G_t)`.
    from_start: [T; CHUNK],
    /// `exp(G_L - G_t)`.
    to_end: [T; CHUNK],
    /// `exp(G_L)`.
    whole: T,
}

/// Values per step of loops over a triangle's rows.
const PIECE: usize = 16;

/// The first `t + 1` values of a triangle's row, and what follows in the last piece.
#[inline(always)]
fn pieces<T>(row: &[T], t: usize) -> &[[T; PIECE]] {
    row[..(t + 1).next_multiple_of(PIECE)].as_chunks().0
}

/// As [`pieces`], to write.
#[inline(always)]
fn pieces_mut<T>(row: &mut [T], t: usize) -> &mut [[T; PIECE]] {
    row[..(t + 1).next_multiple_of(PIECE)].as_chunks_mut().0
}

/// `y = factor · decay · x` over the first `t + 1` values of a row; what follows in the last piece is of no meaning.
#[inline(always)]
fn decayed_row<T: Real>(y: &mut [T], t: usize, factor: T, decay: &[T], x: &[T]) {
    for ((y, decay), x) in pieces_mut(y, t)
        .iter_mut()
        .zip(pieces(decay, t))
        .zip(pieces(x, t))
    {
        for i in 0..PIECE {
            y[i] = factor * decay[i] * x[i];
        }
    }
}

/// `exp` of the cumulative log decays of a chunk; `decay[t, s] = exp(G_t - G_s)` for `s <= t`, 0 from there to the end
/// of the [`PIECE`] (the rest untouched).
#[inline(always)]
fn decays<T: Real>(g: Mat<T>, first: usize, len: usize, head: usize, decay: &mut [T]) -> Decays<T> {
    let mut sums = [0.0f64; CHUNK];
    let mut total = 0.0;
    for (t, sum) in sums[..len].iter_mut().enumerate() {
        total += g.row(first + t)[head].f64();
        *sum = total;
    }
    let mut d = Decays {
        from_start: [T::ZERO; CHUNK],
        to_end: [T::ZERO; CHUNK],
        whole: T::of(total).exp(),
    };
    for t in 0..len {
        d.from_start[t] = T::of(sums[t]).exp();
        d.to_end[t] = T::of(total - sums[t]).exp();
        let now = sums[t];
        // Whole pieces of a fixed size, the part beyond t zeroed: loops of every length would be scalar code.
        let row = pieces_mut(&mut decay[t * CHUNK..], t);
        for (c, (piece, sums)) in row.iter_mut().zip(pieces(&sums, t)).enumerate() {
            for i in 0..PIECE {
                let value = T::of(now - sums[i]).exp();
                piece[i] = if c * PIECE + i <= t { value } else { T::ZERO };
            }
        }
    }
    d
}

/// `to = fromᵀ`, `to` dense with `stride` values per row.
#[inline(always)]
fn transpose<T: Real>(from: Mat<T>, to: &mut [T], stride: usize) {
    const TILE: usize = 8;
    for r0 in (0..from.rows).step_by(TILE) {
        let rows = TILE.min(from.rows - r0);
        for c0 in (0..from.width).step_by(TILE) {
            let columns = TILE.min(from.width - c0);
            let mut tile = [[T::ZERO; TILE]; TILE];
            #[allow(clippy::needless_range_loop)] // r is the second index of the tile
            for r in 0..rows {
                let row = &from.row(r0 + r)[c0..c0 + columns];
                for (c, &x) in row.iter().enumerate() {
                    tile[c][r] = x;
                }
            }
            for (c, column) in tile[..columns].iter().enumerate() {
                to[(c0 + c) * stride + r0..][..rows].copy_from_slice(&column[..rows]);
            }
        }
    }
}

/// The matrices a group of value heads shares: `k kᵀ` and `q kᵀ` (both `[L, L]`, stride [`CHUNK`]).
#[inline(always)]
fn products<T: Real, S: Simd>(
    simd: S,
    q: Mat<T>,
    k: Mat<T>,
    kt: &mut [T],
    kk: &mut [T],
    qk: &mut [T],
    tail: &mut [T],
) {
    let len = k.rows;
    transpose(k, kt, CHUNK);
    let kt = Mat::new(kt, k.width, len, CHUNK);
    gemm_small(
        simd,
        Factor::plain(k),
        kt,
        MatMut::new(kk, len, len, CHUNK),
        Into::Set,
        tail,
    );
    gemm_small(
        simd,
        Factor::plain(q),
        kt,
        MatMut::new(qk, len, len, CHUNK),
        Into::Set,
        tail,
    );
}
