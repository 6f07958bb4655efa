//! CPU: language-model head and cross entropy.
//!
//! A chunk of logits is held in blocks of [`VOCAB_BLOCK`] vocabulary entries, each as panels `[entries, NR]` of as many
//! rows as a register tile is wide. Three passes over a chunk:
//!
//! 1. per block: logits, the block's own maximum, exponentials against it and their sum, panel by panel while it lies
//!    in the cache; then the blocks are combined in ascending order;
//! 2. per block: exponentials become gradients, and `dweight += d x` while the block lies in the cache (the panels
//!    are the left factor as they are);
//! 3. per group of panels: `dx = dᵀ weight`, the panels again the left factor, the weight packed once.
//!
//! Sums: a logit as in the products of [`gemm`](super::gemm). `dweight` adds to what is there one chain of fused
//! multiply-adds per [`KC`] rows of the chunk; `dx` one per [`GROUP`] whole blocks of the vocabulary and one for a last,
//! shorter block.

use rayon::prelude::*;

use super::gemm::{Factor, Into, KC, PACKED_B, pack_b};
use super::matrix::{Mat, MatMut};
use super::real::{Isa, Real, isa, vectorized};
use super::softmax::{combine, exponentials, scale_rows};
use super::store::Scope;
use super::tile::{Inner, MR, tile_rows};
use super::work::{Need, Work, lock, take};
use crate::ops::{IGNORE_INDEX, LinearCrossEntropy};
use crate::plan::{Geometry, Plan};

/// Vocabulary entries per partial sum of the softmax: a block of 512 rows stays in the cache.
const VOCAB_BLOCK: usize = 16 * MR;
/// Blocks per sum over the vocabulary.
const GROUP: usize = 2;

/// Sizes of the working memory.
#[derive(Clone, Copy)]
struct Sizes {
    vocab: usize,
    k: usize,
    /// Rows of a panel: the width of a register tile.
    nr: usize,
    /// Most rows of a chunk: a multiple of `nr`, unless the plan's logits are fewer.
    rows: usize,
    /// `rows` in whole panels.
    padded_rows: usize,
    /// `k` in whole tiles.
    padded_k: usize,
    /// Entries of the vocabulary whose weights are packed at a time.
    round: usize,
    /// The plan's logits hold a whole panel.
    fits: bool,
}

impl Sizes {
    fn of<T: Real>(op: &LinearCrossEntropy, plan: &Plan) -> Self {
        let (vocab, k) = (plan.buffer(op.weight).shape[0], plan.buffer(op.weight).width());
        let nr = 2 * T::lanes::<Isa>();
        let rows = plan.buffer(op.logits).shape[0].min(plan.geometry.seq_length);
        let fits = rows >= nr;
        let rows = if fits { rows / nr * nr } else { rows };
        let padded_k = k.next_multiple_of(nr);
        let group = GROUP * VOCAB_BLOCK;
        let round = (PACKED_B / padded_k / group).max(1) * group;
        Sizes {
            vocab,
            k,
            nr,
            rows,
            padded_rows: rows.next_multiple_of(nr),
            padded_k,
            round: round.min(vocab),
            fits,
        }
    }

    fn blocks(&self) -> usize {
        self.vocab.div_ceil(VOCAB_BLOCK)
    }
}

/// Working memory of [`linear_cross_entropy`].
pub fn need<T: Real>(op: &LinearCrossEntropy, plan: &Plan) -> Need {
    let s = Sizes::of::<T>(op, plan);
    let factors = (s.k + s.padded_k) * s.padded_rows + s.round * s.padded_k;
    let panel = if s.fits { 0 } else { s.vocab * s.nr };
    Need {
        shared: factors + panel + (2 * s.blocks() + 1) * s.padded_rows,
        ..Need::default()
    }
}

/// See [`LinearCrossEntropy`].
pub fn linear_cross_entropy<T: Real>(op: &LinearCrossEntropy, scope: &Scope<T>, work: &Work<T>) {
    let plan = scope.plan();
    let Geometry {
        micro_batch_size,
        seq_length,
        ..
    } = plan.geometry;
    let (x, weight, labels) = (scope.mat(op.x), scope.mat(op.weight), scope.ids(op.labels));
    let nll = scope.slice_mut(op.nll);
    let logits = scope.slice_mut(op.logits);
    let mut gradients = op.gradients.as_ref().map(|g| {
        let scale = T::of(scope.scalars(g.grad_scale)[0].get());
        (scale, scope.mat_mut(g.dx), scope.mat_mut(g.dweight))
    });
    let s = Sizes::of::<T>(op, plan);
    let mut shared = lock(&work.shared);
    let mut memory = &mut shared[..];
    let panel = take(&mut memory, if s.fits { 0 } else { s.vocab * s.nr });
    let logits = if s.fits { logits } else { panel };
    let packed_weight = take(&mut memory, s.round * s.padded_k);
    let mut packed = None;
    for sequence in 0..micro_batch_size {
        let mut sum = 0.0;
        for at in (0..seq_length).step_by(s.rows) {
            let (first, rows) = (sequence * seq_length + at, s.rows.min(seq_length - at));
            let (labels, nll) = (&labels[first..][..rows], &mut nll[first..][..rows]);
            let x = x.rows_at(first, rows);
            if labels.iter().all(|&l| l == IGNORE_INDEX) {
                nll.fill(T::ZERO);
                if let Some((_, dx, _)) = &mut gradients {
                    let mut dx = dx.rows_at(first, rows);
                    (0..rows).for_each(|r| dx.row(r).fill(T::ZERO));
                }
                continue;
            }
            let padded = rows.next_multiple_of(s.nr);
            let mut chunk = Chunk {
                s,
                labels,
                padded,
                logits: &mut logits[..s.vocab * padded],
            };
            let mut memory = &mut *memory;
            let maxima = take(&mut memory, s.blocks() * padded);
            let sums = take(&mut memory, s.blocks() * padded);
            let factor = take(&mut memory, padded);
            let by_row = take(&mut memory, s.k * padded);
            chunk.exponentials(weight, x, nll, by_row, maxima, sums);
            let mut totals = lock(&work.sums);
            let totals = &mut totals[..padded];
            vectorized(
                #[inline(always)]
                || combine(maxima, sums, &mut factor[..], totals),
            );
            let scale = gradients.as_ref().map_or(T::ZERO, |g| g.0);
            for ((nll, &label), (factor, &total)) in
                nll.iter_mut().zip(labels).zip(factor.iter_mut().zip(&*totals))
            {
                // `nll` holds the label's logit and `factor` the row's maximum here.
                if label == IGNORE_INDEX {
                    *nll = T::ZERO;
                    *factor = T::ZERO;
                } else {
                    *nll = T::of(total.ln() + (*factor - *nll).f64());
                    *factor = T::of(scale.f64() / total);
                }
            }
            sum += nll.iter().fold(0.0, |sum, x| sum + x.f64());
            if let Some((scale, dx, dweight)) = &mut gradients {
                factor[rows..].fill(T::ZERO);
                let by_column = take(&mut memory, s.padded_k * padded);
                chunk.weight_gradient(x, maxima, factor, *scale, by_column, dweight.reborrow());
                for first in (0..s.vocab).step_by(s.round) {
                    let round = weight.rows_at(first, s.round.min(s.vocab - first));
                    if packed != Some(first) {
                        pack_weight(s, round, packed_weight);
                        packed = Some(first);
                    }
                    let dx = dx.rows_at(at + sequence * seq_length, rows);
                    chunk.input_gradient(first, round.rows, packed_weight, dx);
                }
            }
        }
        let loss = &scope.scalars(op.loss_sum)[0];
        loss.set(loss.get() + sum);
    }
}

/// A chunk of logits: block b of the vocabulary starts at `b · VOCAB_BLOCK · padded`, its panel p after p panels.
struct Chunk<'a, T> {
    s: Sizes,
    labels: &'a [i32],
    /// Rows in whole panels.
    padded: usize,
    logits: &'a mut [T],
}

impl<T: Real> Chunk<'_, T> {
    /// Logits become exponentials relative to the maximum of their block; `nll` becomes the label's logit.
    fn exponentials(
        &mut self,
        weight: Mat<T>,
        x: Mat<T>,
        nll: &mut [T],
        packed_x: &mut [T],
        maxima: &mut [T],
        sums: &mut [T],
    ) {
        let (simd, labels, padded) = (isa(), self.labels, self.padded);
        let Sizes { k, nr, .. } = self.s;
        packed_x
            .par_chunks_mut(k * nr)
            .enumerate()
            .for_each(|(p, panel)| {
                vectorized(
                    #[inline(always)]
                    || pack_b(panel, Factor::transposed(x), nr, p * nr, x.rows - p * nr),
                );
            });
        let packed_x = &*packed_x;
        let nll = MatMut::dense(nll, 1);
        let blocks = self.logits.par_chunks_mut(VOCAB_BLOCK * padded);
        let statistics = maxima.par_chunks_mut(padded).zip(sums.par_chunks_mut(padded));
        blocks
            .zip(statistics)
            .enumerate()
            .for_each(|(b, (block, (maxima, sums)))| {
                let (first, count) = (b * VOCAB_BLOCK, block.len() / padded);
                let weight = weight.rows_at(first, count);
                vectorized(
                    #[inline(always)]
                    || {
                        for (p, panel) in block.chunks_exact_mut(count * nr).enumerate() {
                            for at in (0..k).step_by(KC) {
                                let kc = KC.min(k - at);
                                let into = if at == 0 { Into::Set } else { Into::Add };
                                let b = packed_x[(p * k + at) * nr..][..kc * nr].as_ptr();
                                for i in (0..count).step_by(MR) {
                                    let c = panel[i * nr..].as_mut_ptr();
                                    // SAFETY: rows i.. of the block's weights from column `at` on, kc packed rows of x,
                                    // and as many rows of the panel.
                                    unsafe {
                                        let a = weight.as_ptr().add(i * weight.stride + at);
                                        let (rs, inner) = (weight.stride, Inner::run(kc));
                                        tile_rows(simd, count - i, inner, a, rs, 1, b, nr, c, nr, nr, into);
                                    }
                                }
                            }
                            for (r, &label) in labels.iter().enumerate().skip(p * nr).take(nr) {
                                if let Some(entry) = place(label, first, count) {
                                    // SAFETY: one block holds the label of a row, so one task writes here.
                                    unsafe { nll.part(r, 1, 0, 1) }.row(0)[0] = panel[entry * nr + r % nr];
                                }
                            }
                            let of_panel = p * nr..(p + 1) * nr;
                            exponentials(nr, panel, &mut maxima[of_panel.clone()], &mut sums[of_panel]);
                        }
                    },
                );
            });
    }

    /// Exponentials become `scale · (softmax - onehot(label))`, and `dweight += dᵀ x`.
    fn weight_gradient(
        &mut self,
        x: Mat<T>,
        relative: &[T],
        factor: &[T],
        scale: T,
        packed_x: &mut [T],
        dweight: MatMut<T>,
    ) {
        let (simd, labels, padded) = (isa(), self.labels, self.padded);
        let Sizes { k, nr, .. } = self.s;
        packed_x
            .par_chunks_mut(padded * nr)
            .enumerate()
            .for_each(|(j, panel)| {
                let (of_rows, rest) = panel.split_at_mut(x.rows * nr);
                rest.fill(T::ZERO);
                pack_b(of_rows, Factor::plain(x), nr, j * nr, k - j * nr);
            });
        let packed_x = &*packed_x;
        let blocks = self.logits.par_chunks_mut(VOCAB_BLOCK * padded);
        blocks
            .zip(relative.par_chunks(padded))
            .enumerate()
            .for_each(|(b, (block, relative))| {
                let (first, count) = (b * VOCAB_BLOCK, block.len() / padded);
                // SAFETY: each task has its own rows of the gradient.
                let mut dweight = unsafe { dweight.part(first, count, 0, k) };
                let (ldc, dweight) = (dweight.stride, dweight.as_mut_ptr());
                vectorized(
                    #[inline(always)]
                    || {
                        for (p, panel) in block.chunks_exact_mut(count * nr).enumerate() {
                            let of_panel = p * nr..(p + 1) * nr;
                            scale_rows(nr, panel, &relative[of_panel.clone()], &factor[of_panel]);
                            for (r, &label) in labels.iter().enumerate().skip(p * nr).take(nr) {
                                if let Some(entry) = place(label, first, count) {
                                    panel[entry * nr + r % nr] -= scale;
                                }
                            }
                        }
                        for at in (0..padded).step_by(KC) {
                            let inner = Inner {
                                segments: KC.min(padded - at) / nr,
                                run: nr,
                                jump: count * nr,
                            };
                            for (j, packed_x) in packed_x.chunks_exact(padded * nr).enumerate() {
                                let b = packed_x[at * nr..].as_ptr();
                                for i in (0..count).step_by(MR) {
                                    let a = block[at * count + i * nr..].as_ptr();
                                    // SAFETY: entries i.. of the block in the panels from row `at` on, the packed rows of
                                    // x from there, and the rows of the gradient with at most k - j · nr columns.
                                    unsafe {
                                        let (c, n) = (dweight.add(i * ldc + j * nr), k - j * nr);
                                        tile_rows(
                                            simd,
                                            count - i,
                                            inner,
                                            a,
                                            nr,
                                            1,
                                            b,
                                            nr,
                                            c,
                                            ldc,
                                            n,
                                            Into::Add,
                                        );
                                    }
                                }
                            }
                        }
                    },
                );
            });
    }

    /// `dx (=, +=) d weight` over `count` entries of the vocabulary from `first` on, whose weights are packed; the
    /// first round overwrites.
    fn input_gradient(&self, first: usize, count: usize, packed_weight: &[T], dx: MatMut<T>) {
        let (simd, padded, logits) = (isa(), self.padded, &*self.logits);
        let Sizes { k, nr, padded_k, .. } = self.s;
        let panels = padded / nr;
        // Enough tasks for every worker; the split is not part of the result's definition.
        let each = panels.div_ceil(2 * rayon::current_num_threads()).min(8);
        (0..panels.div_ceil(each)).into_par_iter().for_each(|task| {
            let of_task = task * each..((task + 1) * each).min(panels);
            let row = of_task.start * nr;
            // SAFETY: each task has its own rows.
            let mut dx = unsafe { dx.part(row, (of_task.end * nr).min(dx.rows) - row, 0, k) };
            let (rows, ldc, dx) = (dx.rows, dx.stride, dx.as_mut_ptr());
            vectorized(
                #[inline(always)]
                || {
                    for at in (0..count).step_by(GROUP * VOCAB_BLOCK) {
                        let group = (GROUP * VOCAB_BLOCK).min(count - at);
                        let (blocks, rest) = (group / VOCAB_BLOCK, group % VOCAB_BLOCK);
                        // Whole blocks, then a last one: where it starts, its entries, and how its entries are cut.
                        let parts = [
                            (0, VOCAB_BLOCK, blocks),
                            (blocks * VOCAB_BLOCK, rest, rest.min(1)),
                        ];
                        for (start, run, segments) in parts.into_iter().filter(|part| part.2 > 0) {
                            let inner = Inner {
                                segments,
                                run,
                                jump: VOCAB_BLOCK * padded,
                            };
                            let into = if first + at + start == 0 {
                                Into::Set
                            } else {
                                Into::Add
                            };
                            let block = &logits[(first + at + start) * padded..];
                            let packed = &packed_weight[at * padded_k..][..group * padded_k];
                            for (j, packed) in packed.chunks_exact(group * nr).enumerate() {
                                let b = packed[start * nr..].as_ptr();
                                for p in of_task.clone() {
                                    let a = block[p * run * nr..].as_ptr();
                                    let from = p * nr - row;
                                    for (i, height) in tile_heights(nr) {
                                        let Some(left) = rows.checked_sub(from + i).filter(|&n| n > 0) else {
                                            break;
                                        };
                                        // SAFETY: rows i.. of the panel in the blocks' entries, the packed weights of
                                        // those entries, rows of dx with at most k - j · nr columns.
                                        unsafe {
                                            let (a, m) = (a.add(i), height.min(left));
                                            let (c, n) = (dx.add((from + i) * ldc + j * nr), k - j * nr);
                                            tile_rows(simd, m, inner, a, 1, nr, b, nr, c, ldc, n, into);
                                        }
                                    }
                                }
                            }
                        }
                    }
                },
            );
        });
    }
}

/// Weights of a round of entries: for each group of blocks its panels of columns.
fn pack_weight<T: Real>(s: Sizes, weight: Mat<T>, packed: &mut [T]) {
    let group = GROUP * VOCAB_BLOCK;
    packed[..weight.rows * s.padded_k]
        .par_chunks_mut(group * s.padded_k)
        .enumerate()
        .for_each(|(g, packed)| {
            let count = packed.len() / s.padded_k;
            let weight = weight.rows_at(g * group, count);
            for (j, panel) in packed.chunks_exact_mut(count * s.nr).enumerate() {
                pack_b(panel, Factor::plain(weight), s.nr, j * s.nr, s.k - j * s.nr);
            }
        });
}

/// Start and height of the tiles that a panel's rows are cut into: as equal as can be.
#[inline(always)]
fn tile_heights(nr: usize) -> impl Iterator<Item = (usize, usize)> {
    let tiles = nr.div_ceil(MR);
    let (height, longer) = (nr / tiles, nr % tiles);
    (0..tiles).map(move |t| (t * height + t.min(longer), height + usize::from(t < longer)))
}

/// Where a block of `count` entries from `first` on has the label.
#[inline(always)]
fn place(label: i32, first: usize, count: usize) -> Option<usize> {
    let entry = usize::try_from(label).ok()?.checked_sub(first)?;
    (entry < count).then_some(entry)
}
