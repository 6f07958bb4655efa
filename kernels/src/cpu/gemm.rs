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
use super::tile::{Inner, MAX_NR, MR, tile_rows};
use super::work::lock;

/// Block of the inner dimension; part of the definition of the result.
pub const KC: usize = 256;
/// Rows of A per packed panel: several tiles, so that packing copies whole vectors.
const PANEL: usize = 4 * MR;
/// Most rows of A per block.
const MC: usize = 4 * PANEL;
/// Most values of B packed at a time.
pub const PACKED_B: usize = 1 << 20;

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
    let period = a.extents().1;
    gemm_periodic(scratch, a, b, c, into, period);
}

/// [`gemm`] with an inner dimension made of parts of `period` steps: blocks of [`KC`] start anew in each, so the result is
/// that of one accumulating product after the other.
pub fn gemm_periodic<T: Real>(
    scratch: &GemmScratch<T>,
    a: Factor<T>,
    b: Factor<T>,
    c: MatMut<T>,
    into: Into,
    period: usize,
) {
    check(a, b, &c);
    parallel(isa(), scratch, a, b, c, into, period);
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
    period: usize,
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
        let wanted = 4 * rayon::current_num_threads();
        // Column groups would each pack their rows of a transposed A again: rather fewer rows per task.
        let mc = if a.transposed {
            m.div_ceil(wanted).next_multiple_of(PANEL).min(MC)
        } else {
            MC
        };
        let row_tasks = m.div_ceil(mc);
        let column_tasks = if a.transposed && 2 * row_tasks > wanted {
            1
        } else {
            wanted.div_ceil(row_tasks).min(panels.div_ceil(4)).max(1)
        };
        let panels_each = panels.div_ceil(column_tasks);
        (0..row_tasks * column_tasks).into_par_iter().for_each(|task| {
            let (row, group) = (task % row_tasks * mc, task / row_tasks * panels_each);
            if group >= panels {
                return;
            }
            let rows = mc.min(m - row);
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
                || block(simd, a, row, k, period, b, c, into, &mut packed_a),
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
pub(super) fn pack_b<T: Real>(panel: &mut [T], b: Factor<T>, nr: usize, first: usize, columns: usize) {
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
    period: usize,
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
    let (mut at, mut kc) = (0, 0);
    while at + kc < k {
        at += kc;
        kc = KC.min(k - at).min(period - at % period);
        let into = if at > 0 && into == Into::Set {
            Into::Add
        } else {
            into
        };
        let (ap, rs, cs) = if a.transposed {
            pack_a(packed_a, a, row, m, at, kc);
            (packed_a.as_ptr(), 1, PANEL)
        } else {
            // SAFETY: row `row` and column `at` exist in A.
            (unsafe { a.mat.as_ptr().add(row * a_rows + at) }, a_rows, 1)
        };
        for j in (0..n).step_by(nr) {
            let b = packed_b[j * k + at * nr..][..kc * nr].as_ptr();
            for i in (0..m).step_by(MR) {
                let a = if a.transposed {
                    i / PANEL * PANEL * kc + i % PANEL
                } else {
                    i * rs
                };
                // SAFETY: the tile covers rows i.. of A's block and of C, kc packed rows of B, and at most
                // `n - j` columns of C.
                unsafe {
                    let (a, c) = (ap.add(a), c.add(i * ldc + j));
                    tile_rows(simd, m - i, Inner::run(kc), a, rs, cs, b, nr, c, ldc, n - j, into);
                }
            }
        }
    }
}

/// Rows `row ..` of the transposed matrix A, columns `at ..`, in panels of [`PANEL`] rows.
#[inline(always)]
fn pack_a<T: Real>(packed: &mut [T], a: Factor<T>, row: usize, m: usize, at: usize, kc: usize) {
    for p in 0..kc {
        let source = &a.mat.row(at + p)[row..row + m];
        // Copies of a fixed size: short ones of a variable size are calls.
        let (whole, rest) = source.as_chunks::<PANEL>();
        for (i, chunk) in whole.iter().enumerate() {
            packed[(i * kc + p) * PANEL..][..PANEL].copy_from_slice(chunk);
        }
        if rest.is_empty() {
            continue;
        }
        let to = &mut packed[(whole.len() * kc + p) * PANEL..];
        let (pieces, last) = rest.as_chunks::<8>();
        for (chunk, to) in pieces.iter().zip(to.as_chunks_mut::<8>().0) {
            to.copy_from_slice(chunk);
        }
        for (&x, to) in last.iter().zip(&mut to[pieces.len() * 8..]) {
            *to = x;
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
                        tile_rows(simd, m - i, Inner::run(kc), a, rs, cs, b, bs, c, ldc, n - j, into);
                    }
                }
            }
        }
    }
}

/// Values of `tail` that [`gemm_small`] may need.
pub const SMALL_TAIL: usize = KC * MAX_NR;
