//! CPU: language-model head and cross entropy.
//!
//! A chunk of logits is held transposed, `[vocab, rows]`: the weight is then the left factor of the product and needs
//! no packing, and the softmax of all rows runs in vector lanes without sums across a vector. The vocabulary is cut
//! into blocks of [`VOCAB_BLOCK`]; each keeps its own maximum, against which its exponentials are formed (once), and
//! the blocks are combined in ascending order.

use rayon::prelude::*;

use super::gemm::{Factor, GemmScratch, Into, gemm};
use super::matrix::{Mat, MatMut};
use super::real::{Real, vectorized};
use super::store::Scope;
use super::work::{Need, Work, lock, take};
use crate::ops::{IGNORE_INDEX, LinearCrossEntropy};
use crate::plan::{Geometry, Plan};

/// Vocabulary entries per partial sum of the softmax.
const VOCAB_BLOCK: usize = 64;

fn chunk_rows(op: &LinearCrossEntropy, plan: &Plan) -> usize {
    plan.buffer(op.logits).shape[0].min(plan.geometry.seq_length)
}

/// Working memory of [`linear_cross_entropy`].
pub fn need<T: Real>(op: &LinearCrossEntropy, plan: &Plan) -> Need {
    let (vocab, k) = (plan.buffer(op.weight).shape[0], plan.buffer(op.weight).width());
    let rows = chunk_rows(op, plan);
    let packed = GemmScratch::<T>::packed_len;
    Need {
        shared: (2 * vocab.div_ceil(VOCAB_BLOCK) + 2) * rows,
        packed_b: packed(k, rows).max(packed(vocab, k)).max(packed(rows, k)),
        worker: 0,
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
    let mut shared = lock(&work.shared);
    let vocab = weight.rows;
    let largest = chunk_rows(op, plan);
    for sequence in 0..micro_batch_size {
        let mut sum = 0.0;
        for at in (0..seq_length).step_by(largest) {
            let (first, rows) = (sequence * seq_length + at, largest.min(seq_length - at));
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
            let mut logits = MatMut::dense(&mut logits[..vocab * rows], rows);
            let product = Factor::plain(weight);
            gemm(
                &work.gemm,
                product,
                Factor::transposed(x),
                logits.reborrow(),
                Into::Set,
            );
            let scale = gradients.as_ref().map(|g| g.0);
            softmax(
                logits.reborrow(),
                labels,
                nll,
                scale,
                &mut shared,
                &mut lock(&work.sums)[..rows],
            );
            sum += nll.iter().fold(0.0, |sum, x| sum + x.f64());
            if let Some((_, dx, dweight)) = &mut gradients {
                let d = logits.as_ref();
                let dx = dx.rows_at(first, rows);
                gemm(
                    &work.gemm,
                    Factor::transposed(d),
                    Factor::plain(weight),
                    dx,
                    Into::Set,
                );
                gemm(
                    &work.gemm,
                    Factor::plain(d),
                    Factor::plain(x),
                    dweight.reborrow(),
                    Into::Add,
                );
            }
        }
        let loss = &scope.scalars(op.loss_sum)[0];
        loss.set(loss.get() + sum);
    }
}

/// Negative log-likelihoods of a chunk; with a scale, its logits become `scale · (softmax - onehot(label))`.
fn softmax<T: Real>(
    mut logits: MatMut<T>,
    labels: &[i32],
    nll: &mut [T],
    scale: Option<T>,
    shared: &mut [T],
    totals: &mut [f64],
) {
    let (vocab, rows) = (logits.rows, labels.len());
    let blocks = vocab.div_ceil(VOCAB_BLOCK);
    let mut memory = shared;
    let maxima = take(&mut memory, blocks * rows);
    let sums = take(&mut memory, blocks * rows);
    let factor = take(&mut memory, rows);
    for (r, (&label, nll)) in labels.iter().zip(nll.iter_mut()).enumerate() {
        // The label's logit, before the exponentials overwrite it.
        *nll = if label == IGNORE_INDEX {
            T::ZERO
        } else {
            logits.row(label as usize)[r]
        };
    }
    let keep = scale.is_some();
    let all = logits.as_ref();
    let block_at = |b: usize| (b * VOCAB_BLOCK, VOCAB_BLOCK.min(vocab - b * VOCAB_BLOCK));
    let parts = maxima
        .par_chunks_mut(rows)
        .zip(sums.par_chunks_mut(rows))
        .enumerate();
    let logits = &logits;
    parts.for_each(|(b, (maxima, sums))| {
        let (first, count) = block_at(b);
        let block = all.rows_at(first, count);
        vectorized(
            #[inline(always)]
            || block_maxima(block, maxima),
        );
        if keep {
            // SAFETY: each task writes its own block of vocabulary rows, and reads no other.
            let mut block = unsafe { logits.part(first, count, 0, rows) };
            vectorized(
                #[inline(always)]
                || {
                    sums.fill(T::ZERO);
                    for i in 0..count {
                        for ((x, &max), sum) in block.row(i).iter_mut().zip(&*maxima).zip(sums.iter_mut()) {
                            *x = (*x - max).exp();
                            *sum += *x;
                        }
                    }
                },
            );
        } else {
            vectorized(
                #[inline(always)]
                || {
                    sums.fill(T::ZERO);
                    for i in 0..count {
                        for ((&x, &max), sum) in block.row(i).iter().zip(&*maxima).zip(sums.iter_mut()) {
                            *sum += (x - max).exp();
                        }
                    }
                },
            );
        }
    });
    vectorized(
        #[inline(always)]
        || combine(maxima, sums, &mut factor[..], totals),
    );
    for (r, (&label, nll)) in labels.iter().zip(nll.iter_mut()).enumerate() {
        // `factor` holds the row's maximum here.
        if label == IGNORE_INDEX {
            factor[r] = T::ZERO;
        } else {
            *nll = T::of(totals[r].ln() + (factor[r] - *nll).f64());
            factor[r] = T::of(scale.map_or(0.0, T::f64) / totals[r]);
        }
    }
    let factor = &*factor;
    let Some(scale) = scale else { return };
    maxima.par_chunks(rows).enumerate().for_each(|(b, relative)| {
        let (first, count) = block_at(b);
        // SAFETY: each task writes its own block of vocabulary rows.
        let mut block = unsafe { logits.part(first, count, 0, rows) };
        vectorized(
            #[inline(always)]
            || {
                for i in 0..count {
                    for ((x, &e), &f) in block.row(i).iter_mut().zip(relative).zip(factor) {
                        *x *= e * f;
                    }
                }
            },
        );
        for (r, &label) in labels.iter().enumerate() {
            if label >= first as i32 && ((label as usize) < first + count) {
                block.row(label as usize - first)[r] -= scale;
            }
        }
    });
}

/// Over all blocks: the maximum of each row (`max`), each block's maximum relative to it (`exp(m_b - m)`, over
/// `maxima`), and the sum of exponentials relative to it (`totals`).
#[inline(always)]
fn combine<T: Real>(maxima: &mut [T], sums: &[T], max: &mut [T], totals: &mut [f64]) {
    let rows = max.len();
    max.copy_from_slice(&maxima[..rows]);
    for block in maxima.chunks_exact(rows) {
        max.iter_mut().zip(block).for_each(|(max, &x)| *max = x.max(*max));
    }
    totals.fill(0.0);
    for (block, sums) in maxima.chunks_exact_mut(rows).zip(sums.chunks_exact(rows)) {
        for (((e, &sum), &max), total) in block.iter_mut().zip(sums).zip(&*max).zip(totals.iter_mut()) {
            *e = (*e - max).exp();
            *total += sum.f64() * e.f64();
        }
    }
}

#[inline(always)]
fn block_maxima<T: Real>(block: Mat<T>, maxima: &mut [T]) {
    maxima.copy_from_slice(block.row(0));
    for i in 1..block.rows {
        maxima
            .iter_mut()
            .zip(block.row(i))
            .for_each(|(max, &x)| *max = x.max(*max));
    }
}
