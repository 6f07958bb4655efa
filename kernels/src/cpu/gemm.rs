//! Matrix products.
//!
//! Definition: with the inner dimension cut into blocks of [`KC`], each element is
//! `((c₀ + s₀) + s₁) + …` where `s_b` is the chain of fused multiply-adds over block b in ascending order, starting
//! from 0 (`c₀` is absent when the result is overwritten). The value of an element depends on its row of A, its
//! column of B and nothing else: not on its position, the number of rows around it, the split over threads or the
//! vector width. That is why this is not a general GEMM library: those choose between kernels by the shape of the
//! whole product, block by the cache sizes they find, and allocate on every call.
//!
//! Memory: a packed copy of at most [`PACKED_B`] values of B at a time, and per worker one packed block of A.

use std::sync::Mutex;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::matrix::{Mat, MatMut};
use super::real::{Real, isa};
use super::work::lock;

/// Block of the inner dimension; part of the definition of the result.
pub const KC: usize = 256;
/// Rows of a register tile.
const MR: usize = 6;
/// Rows of A per block.
const MC: usize = 16 * MR;
/// Most values of B packed at a time.
pub const PACKED_B: usize = 1 << 20;
/// Widest register tile of any instruction set, in values.
const MAX_NR: usize = 32;

/// What happens to the result matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Into {
    /// `C = A B`
    Set,
    /// `C = C + A B`
    Add,
    /// `C = C - A B`
    Sub,
}

/// A factor of a product: a matrix, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a, T> {
    mat: Mat<'a, T>,
    transposed: bool,
}

impl<'a, T> Factor<'a, T> {
    /// The matrix itself.
    pub fn plain(mat: Mat<'a, T>) -> Self {
        Factor {
            mat,
            transposed: false,
        }
    }

    /// Its transpose.
    pub fn transposed(mat: Mat<'a, T>) -> Self {
        Factor {
            mat,
            transposed: true,
        }
    }

    /// Rows and columns as a factor.
    pub fn extents(&self) -> (usize, usize) {
        if self.transposed {
            (self.mat.width, self.mat.rows)
        } else {
            (self.mat.rows, self.mat.width)
        }
    }

    /// Distance of rows and of columns.
    fn strides(&self) -> (usize, usize) {
        if self.transposed {
            (1, self.mat.stride)
        } else {
            (self.mat.stride, 1)
        }
    }
}

/// Working memory of products: one packed B, and per worker one packed A.
pub struct GemmScratch<T> {
    packed_b: Mutex<Vec<T>>,
    workers: Vec<Mutex<Vec<T>>>,
}

impl<T: Real> GemmScratch<T> {
    /// For a pool of `threads` workers and products whose B has at most `largest_b` values, padding included.
    pub fn new(threads: usize, largest_b: usize) -> Self {
        GemmScratch {
            packed_b: Mutex::new(vec![T::ZERO; largest_b.min(PACKED_B + KC * MAX_NR)]),
            workers: (0..threads).map(|_| Mutex::new(vec![T::ZERO; MC * KC])).collect(),
        }
    }

    /// Values that B of `k x n` needs, padding included; for [`new`](Self::new).
    pub fn packed_len(k: usize, n: usize) -> usize {
        k * n.next_multiple_of(MAX_NR)
    }
}

/// `C (=, +=, -=) A B` on the current rayon pool. Shapes: A `[m, k]`, B `[k, n]`, C `[m, n]`.
///
/// Must be called from one thread of the pool at a time (B is packed into one shared buffer).
pub fn gemm<T: Real>(scratch: &GemmScratch<T>, a: Factor<T>, b: Factor<T>, c: MatMut<T>, into: Into) {
    check(a, b, &c);
    parallel(isa(), scratch, a, b, c, into);
}

fn check<T>(a: Factor<T>, b: Factor<T>, c: &MatMut<T>) {
    let ((m, k), (kb, n)) = (a.extents(), b.extents());
    assert!(
        k == kb && c.rows == m && c.width == n,
        "product of {m}x{k} and {kb}x{n} into {}x{}",
        c.rows,
        c.width
    );
}

fn parallel<T: Real, S: Simd>(
    simd: S,
    scratch: &GemmScratch<T>,
    a: Factor<T>,
    b: Factor<T>,
    mut c: MatMut<T>,
    into: Into,
) {
    let (m, k) = a.extents();
    let n = b.extents().1;
    if m == 0 || n == 0 {
        return;
    }
    let nr = 2 * T::lanes::<S>();
    let mut packed = lock(&scratch.packed_b);
    // Columns per round, so that the packed block fits.
    let round = (packed.len() / k.max(1) / nr).max(1) * nr;
    for first in (0..n).step_by(round) {
        let columns = round.min(n - first);
        let panels = columns.div_ceil(nr);
        assert!(
            panels * nr * k <= packed.len(),
            "B of {k} rows does not fit the packing buffer"
        );
        let packed = &mut packed[..panels * nr * k];
        packed
            .par_chunks_mut((nr * k).max(1))
            .enumerate()
            .for_each(|(p, panel)| {
                vectorize(
                    simd,
                    #[inline(always)]
                    || pack_b(panel, b, nr, first + p * nr, columns - p * nr),
                )
            });
        let packed = &*packed;
        let c = c.columns_at(first, columns);
        // Enough tasks for every worker; the split is not part of the result's definition.
        let row_tasks = m.div_ceil(MC);
        let wanted = 4 * rayon::current_num_threads();
        let column_tasks = wanted.div_ceil(row_tasks).min(panels.div_ceil(4)).max(1);
        let panels_each = panels.div_ceil(column_tasks);
        (0..row_tasks * column_tasks).into_par_iter().for_each(|task| {
            let (row, group) = (task % row_tasks * MC, task / row_tasks * panels_each);
            if group >= panels {
                return;
            }
            let rows = MC.min(m - row);
            let group_panels = panels_each.min(panels - group);
            let width = (group_panels * nr).min(columns - group * nr);
            // SAFETY: tasks have different row blocks or different column groups.
            let c = unsafe { c.part(row, rows, group * nr, width) };
            let worker = rayon::current_thread_index().unwrap_or(0) % scratch.workers.len();
            let mut packed_a = lock(&scratch.workers[worker]);
            let b = &packed[group * nr * k..(group + group_panels) * nr * k];
            vectorize(
                simd,
                #[inline(always)]
                || block(simd, a, row, k, b, c, into, &mut packed_a),
            );
        });
    }
}

/// Runs `f` with the instruction set of `simd`, also on another thread than the one that chose it.
#[inline(always)]
fn vectorize<S: Simd, R>(simd: S, f: impl FnOnce() -> R) -> R {
    struct Plain<F>(F);
    impl<R, F: FnOnce() -> R> WithSimd for Plain<F> {
        type Output = R;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> R {
            (self.0)()
        }
    }
    simd.vectorize(Plain(f))
}

/// Columns `first ..` of B as one panel: for each row `nr` values, zeros beyond `columns`.
#[inline(always)]
fn pack_b<T: Real>(panel: &mut [T], b: Factor<T>, nr: usize, first: usize, columns: usize) {
    let columns = columns.min(nr);
    if columns < nr {
        panel.fill(T::ZERO);
    }
    if b.transposed {
        for j in 0..columns {
            let source = b.mat.row(first + j);
            for (to, &x) in panel[j..].iter_mut().step_by(nr).zip(source) {
                *to = x;
            }
        }
    } else {
        for (p, to) in panel.chunks_exact_mut(nr).enumerate() {
            let source = &b.mat.row(p)[first..first + columns];
            if columns == nr {
                to.copy_from_slice(&source[..nr]);
            } else {
                to[..columns].copy_from_slice(source);
            }
        }
    }
}

/// One block of rows times packed panels.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn block<T: Real, S: Simd>(
    simd: S,
    a: Factor<T>,
    row: usize,
    k: usize,
    packed_b: &[T],
    mut c: MatMut<T>,
    into: Into,
    packed_a: &mut [T],
) {
    let nr = 2 * T::lanes::<S>();
    let (m, n, ldc) = (c.rows, c.width, c.stride);
    let c = c.as_mut_ptr();
    let (a_rows, _) = a.strides();
    if k == 0 {
        if into == Into::Set {
            // SAFETY: rows and columns of `c`.
            (0..m).for_each(|i| unsafe { std::slice::from_raw_parts_mut(c.add(i * ldc), n) }.fill(T::ZERO));
        }
        return;
    }
    for at in (0..k).step_by(KC) {
        let kc = KC.min(k - at);
        let into = if at > 0 && into == Into::Set {
            Into::Add
        } else {
            into
        };
        let (ap, rs, cs) = if a.transposed {
            pack_a(packed_a, a, row, m, at, kc);
            (packed_a.as_ptr(), 1, MR)
        } else {
            // SAFETY: row `row` and column `at` exist in A.
            (unsafe { a.mat.as_ptr().add(row * a_rows + at) }, a_rows, 1)
        };
        for j in (0..n).step_by(nr) {
            let b = packed_b[j * k + at * nr..][..kc * nr].as_ptr();
            for i in (0..m).step_by(MR) {
                let a = if a.transposed { i * kc } else { i * rs };
                // SAFETY: the tile covers rows i.. of A's block and of C, kc packed rows of B, and at most
                // `n - j` columns of C.
                unsafe {
                    let (a, c) = (ap.add(a), c.add(i * ldc + j));
                    tile_rows(simd, m - i, kc, a, rs, cs, b, nr, c, ldc, n - j, into);
                }
            }
        }
    }
}

/// Rows `row ..` of the transposed matrix A, columns `at ..`, in panels of [`MR`] rows.
#[inline(always)]
fn pack_a<T: Real>(packed: &mut [T], a: Factor<T>, row: usize, m: usize, at: usize, kc: usize) {
    for p in 0..kc {
        let source = &a.mat.row(at + p)[row..row + m];
        // Whole panels by copies of a fixed size: short ones of a variable size are calls.
        let (whole, rest) = source.as_chunks::<MR>();
        for (i, chunk) in whole.iter().enumerate() {
            packed[i * MR * kc + p * MR..][..MR].copy_from_slice(chunk);
        }
        if !rest.is_empty() {
            packed[whole.len() * MR * kc + p * MR..][..rest.len()].copy_from_slice(rest);
        }
    }
}

/// One register tile of up to [`MR`] rows.
///
/// # Safety
/// `a` has `min(rows, MR)` rows of `kc` values at strides `rs`, `cs`; `b` has `kc` rows of `2 · lanes` values, `bs`
/// apart; `c` has those rows of `min(n, 2 · lanes)` values, `ldc` apart, not accessed by others.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn tile_rows<T: Real, S: Simd>(
    simd: S,
    rows: usize,
    kc: usize,
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
            1 => tile::<T, S, 1>(simd, kc, a, rs, cs, b, bs, c, ldc, n, into),
            2 => tile::<T, S, 2>(simd, kc, a, rs, cs, b, bs, c, ldc, n, into),
            3 => tile::<T, S, 3>(simd, kc, a, rs, cs, b, bs, c, ldc, n, into),
            4 => tile::<T, S, 4>(simd, kc, a, rs, cs, b, bs, c, ldc, n, into),
            5 => tile::<T, S, 5>(simd, kc, a, rs, cs, b, bs, c, ldc, n, into),
            _ => tile::<T, S, 6>(simd, kc, a, rs, cs, b, bs, c, ldc, n, into),
        }
    }
}

/// # Safety
/// As [`tile_rows`], with `M` rows.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn tile<T: Real, S: Simd, const M: usize>(
    simd: S,
    kc: usize,
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
        let (mut a, mut b) = (a, b);
        for _ in 0..kc {
            let (b0, b1) = (load(b), load(b.add(lanes)));
            for (i, acc) in acc.iter_mut().enumerate() {
                let x = T::splat(simd, *a.add(i * rs));
                acc[0] = T::fma(simd, x, b0, acc[0]);
                acc[1] = T::fma(simd, x, b1, acc[1]);
            }
            a = a.add(cs);
            b = b.add(bs);
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

/// A product on the calling thread, for small matrices that lie in the cache.
///
/// B is used in place; `tail` holds [`SMALL_TAIL`] values of working memory for the columns that do not fill a tile.
#[inline(always)]
pub fn gemm_small<T: Real, S: Simd>(
    simd: S,
    a: Factor<T>,
    b: Mat<T>,
    c: MatMut<T>,
    into: Into,
    tail: &mut [T],
) {
    check(a, Factor::plain(b), &c);
    // Compiled once per type and instruction set, not at every call.
    simd.vectorize(SmallProduct { a, b, c, into, tail });
}

struct SmallProduct<'a, T> {
    a: Factor<'a, T>,
    b: Mat<'a, T>,
    c: MatMut<'a, T>,
    into: Into,
    tail: &'a mut [T],
}

impl<T: Real> WithSimd for SmallProduct<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let SmallProduct {
            a,
            b,
            mut c,
            into,
            tail,
        } = self;
        let (m, k) = a.extents();
        let (n, ldc) = (c.width, c.stride);
        let (rs, cs) = a.strides();
        let nr = 2 * T::lanes::<S>();
        let (ap, cp) = (a.mat.as_ptr(), c.as_mut_ptr());
        let full = n - n % nr;
        assert!(k > 0, "empty product");
        for at in (0..k).step_by(KC) {
            let kc = KC.min(k - at);
            let into = if at > 0 && into == Into::Set {
                Into::Add
            } else {
                into
            };
            if full < n {
                for (p, to) in tail[..kc * nr].chunks_exact_mut(nr).enumerate() {
                    to[..n - full].copy_from_slice(&b.row(at + p)[full..]);
                    to[n - full..].fill(T::ZERO);
                }
            }
            for j in (0..n).step_by(nr) {
                let (b, bs) = if j < full {
                    // SAFETY: row `at` and column j of B exist.
                    (unsafe { b.as_ptr().add(at * b.stride + j) }, b.stride)
                } else {
                    // The last columns, padded to a full tile.
                    (tail.as_ptr(), nr)
                };
                for i in (0..m).step_by(MR) {
                    // SAFETY: rows i.. of A and C from column `at` on, kc rows of B with a full tile of columns, and
                    // at most n - j columns of C.
                    unsafe {
                        let (a, c) = (ap.add(i * rs + at * cs), cp.add(i * ldc + j));
                        tile_rows(simd, m - i, kc, a, rs, cs, b, bs, c, ldc, n - j, into);
                    }
                }
            }
        }
    }
}

/// Values of `tail` that [`gemm_small`] may need.
pub const SMALL_TAIL: usize = KC * MAX_NR;
