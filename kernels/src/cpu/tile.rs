//! The register tile of all matrix products.

use pulp::Simd;

use super::gemm::Into;
use super::real::Real;

/// Rows of a register tile.
pub const MR: usize = 6;
/// Widest register tile of any instruction set, in values.
pub const MAX_NR: usize = 32;

/// The inner dimension of a tile: `segments` runs of `run` steps. The rows of B follow one another; in A a segment
/// starts `jump` values after the one before.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// Number of segments.
    pub segments: usize,
    /// Steps per segment.
    pub run: usize,
    /// Distance of segments in A.
    pub jump: usize,
}

impl Inner {
    /// A single segment.
    #[inline(always)]
    pub fn run(run: usize) -> Self {
        Inner {
            segments: 1,
            run,
            jump: 0,
        }
    }
}

/// One register tile of up to [`MR`] rows.
///
/// # Safety
/// `a` has `min(rows, MR)` rows `rs` apart, of the values that `inner` names at stride `cs`; `b` has a row of
/// `2 · lanes` values for every step, `bs` apart; `c` has those rows of `min(n, 2 · lanes)` values, `ldc` apart, not
/// accessed by others.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
pub unsafe fn tile_rows<T: Real, S: Simd>(
    simd: S,
    rows: usize,
    inner: Inner,
    a: *const T,
    rs: usize,
    cs: usize,
    b: *const T,
    bs: usize,
    c: *mut T,
    ldc: usize,
    n: usize,
    into: Into,
) {
    // SAFETY: the caller's contract, with the number of rows as a constant.
    unsafe {
        match rows {
            1 => tile::<T, S, 1>(simd, inner, a, rs, cs, b, bs, c, ldc, n, into),
            2 => tile::<T, S, 2>(simd, inner, a, rs, cs, b, bs, c, ldc, n, into),
            3 => tile::<T, S, 3>(simd, inner, a, rs, cs, b, bs, c, ldc, n, into),
            4 => tile::<T, S, 4>(simd, inner, a, rs, cs, b, bs, c, ldc, n, into),
            5 => tile::<T, S, 5>(simd, inner, a, rs, cs, b, bs, c, ldc, n, into),
            _ => tile::<T, S, 6>(simd, inner, a, rs, cs, b, bs, c, ldc, n, into),
        }
    }
}

/// # Safety
/// As [`tile_rows`], with `M` rows.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn tile<T: Real, S: Simd, const M: usize>(
    simd: S,
    inner: Inner,
    a: *const T,
    rs: usize,
    cs: usize,
    b: *const T,
    bs: usize,
    c: *mut T,
    ldc: usize,
    n: usize,
    into: Into,
) {
    let lanes = T::lanes::<S>();
    let zero = T::splat(simd, T::ZERO);
    let mut acc = [[zero; 2]; M];
    // SAFETY: the caller's contract; vectors are read and written unaligned.
    unsafe {
        let load = |p: *const T| (p as *const T::Vector<S>).read_unaligned();
        let mut b = b;
        for segment in 0..inner.segments {
            let mut a = a.add(segment * inner.jump);
            for _ in 0..inner.run {
                let (b0, b1) = (load(b), load(b.add(lanes)));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let x = T::splat(simd, *a.add(i * rs));
                    acc[0] = T::fma(simd, x, b0, acc[0]);
                    acc[1] = T::fma(simd, x, b1, acc[1]);
                }
                a = a.add(cs);
                b = b.add(bs);
            }
        }
        if n >= 2 * lanes {
            for (i, acc) in acc.iter().enumerate() {
                for (h, &s) in acc.iter().enumerate() {
                    let p = c.add(i * ldc + h * lanes);
                    let y = match into {
                        Into::Set => s,
                        Into::Add => T::vector_add(simd, load(p), s),
                        Into::Sub => T::vector_sub(simd, load(p), s),
                    };
                    (p as *mut T::Vector<S>).write_unaligned(y);
                }
            }
        } else {
            let mut row = [T::ZERO; MAX_NR];
            for (i, acc) in acc.iter().enumerate() {
                (row.as_mut_ptr() as *mut T::Vector<S>).write_unaligned(acc[0]);
                (row.as_mut_ptr().add(lanes) as *mut T::Vector<S>).write_unaligned(acc[1]);
                for (j, &s) in row[..n].iter().enumerate() {
                    let p = c.add(i * ldc + j);
                    *p = match into {
                        Into::Set => s,
                        Into::Add => *p + s,
                        Into::Sub => *p - s,
                    };
                }
            }
        }
    }
}
