//! CPU: short causal convolution, SiLU and l2 norm.
//!
//! Each row is computed by itself from the rows before it that belong to its document, so a document's results do not
//! depend on what is packed around it. The backward pass works on blocks of rows: it recomputes the activations of
//! the block and of the `W - 1` rows after it, whose inputs reach back into the block.

use rayon::prelude::*;

use super::matrix::{BLOCK_ROWS, Mat, MatMut};
use super::real::{Real, dot, vectorized};
use super::store::Scope;
use super::work::{Need, Work, add_block_sums, lock, take};
use crate::ops;
use crate::plan::{BufferId, Plan};

/// The taps as `[W, d]`, one row per tap; a single row of ones when there is no convolution.
fn taps<T: Real>(scope: &Scope<T>, weight: Option<BufferId>, d: usize, out: &mut [T]) -> usize {
    match weight {
        None => {
            out[..d].fill(T::ONE);
            1
        }
        Some(id) => {
            let weight = scope.mat(id);
            for c in 0..d {
                for (j, &w) in weight.row(c).iter().enumerate() {
                    out[j * d + c] = w;
                }
            }
            weight.width
        }
    }
}

fn width(plan: &Plan, weight: Option<BufferId>) -> usize {
    weight.map_or(1, |id| plan.buffer(id).width())
}

/// `z = Σ_j taps[j] · x[row - (W - 1) + j]` over the rows of the document.
#[inline(always)]
fn convolve<T: Real>(x: Mat<T>, taps: &[T], width: usize, row: usize, position: u32, z: &mut [T]) {
    let d = z.len();
    let skip = (width - 1).saturating_sub(position as usize);
    z.fill(T::ZERO);
    for j in skip..width {
        let (x, tap) = (x.row(row + j - (width - 1)), &taps[j * d..][..d]);
        for ((z, &x), &w) in z.iter_mut().zip(x).zip(tap) {
            *z = w.mul_add(x, *z);
        }
    }
}

/// Working memory of [`short_conv`].
pub fn short_conv_need(op: &ops::ShortConv, plan: &Plan) -> Need {
    Need {
        shared: width(plan, op.weight) * op.x.width,
        ..Need::default()
    }
}

/// See [`ops::ShortConv`].
pub fn short_conv<T: Real>(op: &ops::ShortConv, scope: &Scope<T>, work: &Work<T>, position: &[u32]) {
    let (x, d) = (scope.columns(op.x), op.x.width);
    let mut shared = lock(&work.shared);
    let taps_width = taps(scope, op.weight, d, &mut shared);
    let taps = &shared[..taps_width * d];
    let eps = T::of(ops::L2_EPS);
    let out = scope.mat_mut(op.out);
    out.par_row_blocks(&work.blocks)
        .zip(&work.blocks)
        .for_each(|(mut out, block)| {
            vectorized(
                #[inline(always)]
                || {
                    for (r, row) in (block.first..block.end()).enumerate() {
                        let out = out.row(r);
                        convolve(x, taps, taps_width, row, position[row], out);
                        if op.silu {
                            out.iter_mut().for_each(|y| *y *= y.sigmoid());
                        }
                        for head in out[..op.norm_heads * op.head_dim].chunks_exact_mut(op.head_dim) {
                            let scale = T::ONE / (dot(head, head) + eps).sqrt();
                            head.iter_mut().for_each(|y| *y *= scale);
                        }
                    }
                },
            );
        });
}

/// Working memory of [`short_conv_backward`].
pub fn short_conv_backward_need(op: &ops::ShortConvBackward, plan: &Plan, blocks: usize) -> Need {
    let (w, d) = (width(plan, op.weight), op.x.width);
    Need {
        shared: (1 + blocks) * w * d,
        worker: (BLOCK_ROWS + w - 1) * d + d,
        ..Need::default()
    }
}

/// See [`ops::ShortConvBackward`].
pub fn short_conv_backward<T: Real>(
    op: &ops::ShortConvBackward,
    scope: &Scope<T>,
    work: &Work<T>,
    position: &[u32],
) {
    let (x, dout, d) = (scope.columns(op.x), scope.mat(op.dout), op.x.width);
    let mut shared = lock(&work.shared);
    let mut rest = &mut shared[..];
    let taps_width = width(scope.plan(), op.weight);
    let n = taps_width * d;
    let taps_memory = take(&mut rest, n);
    taps(scope, op.weight, d, taps_memory);
    let taps = &*taps_memory;
    let partials = take(&mut rest, work.blocks.len() * n);
    let eps = T::of(ops::L2_EPS);
    let dx = scope.columns_mut(op.dx);
    let outputs = dx
        .par_row_blocks(&work.blocks)
        .zip(MatMut::dense(partials, n).par_rows());
    outputs.zip(&work.blocks).for_each(|((mut dx, dtaps), block)| {
        work.with_worker(
            #[inline(always)]
            |mut memory| {
                let dz = take(&mut memory, (BLOCK_ROWS + taps_width - 1) * d);
                let silu = take(&mut memory, d);
                vectorized(
                    #[inline(always)]
                    || {
                        // Rows after the block count while they belong to the document of the block's last row.
                        let mut end = block.end();
                        while end < block.end() + taps_width - 1 && end < x.rows && position[end] > 0 {
                            end += 1;
                        }
                        for (row, dz) in (block.first..end).zip(dz.chunks_exact_mut(d)) {
                            convolve(x, taps, taps_width, row, position[row], dz);
                            activation_backward(op, eps, dout.row(row), silu, dz);
                        }
                        for (r, row) in (block.first..block.end()).enumerate() {
                            let dx = dx.row(r);
                            dx.fill(T::ZERO);
                            // Tap j of row + W - 1 - j met this row.
                            for j in (0..taps_width).rev() {
                                let later = row + taps_width - 1 - j;
                                if later >= end || (position[later] as usize) < later - row {
                                    break;
                                }
                                let dz = &dz[(later - block.first) * d..][..d];
                                for ((y, &g), &w) in dx.iter_mut().zip(dz).zip(&taps[j * d..][..d]) {
                                    *y = g.mul_add(w, *y);
                                }
                            }
                        }
                        dtaps.fill(T::ZERO);
                        for (row, dz) in (block.first..block.end()).zip(dz.chunks_exact(d)) {
                            let skip = (taps_width - 1).saturating_sub(position[row] as usize);
                            for j in skip..taps_width {
                                let x = x.row(row + j - (taps_width - 1));
                                for ((y, &g), &x) in dtaps[j * d..][..d].iter_mut().zip(dz).zip(x) {
                                    *y = g.mul_add(x, *y);
                                }
                            }
                        }
                    },
                );
            },
        );
    });
    if let Some(id) = op.dweight {
        let dweight = scope.slice_mut(id);
        let partials = &mut shared[n..][..work.blocks.len() * n];
        add_block_sums(&work.blocks, partials, n, |i, sum| {
            dweight[i % d * taps_width + i / d] += sum;
        });
    }
}

/// From `z` to the gradient of `z`, in place: through the l2 norm of the first heads and SiLU.
#[inline(always)]
fn activation_backward<T: Real>(
    op: &ops::ShortConvBackward,
    eps: T,
    dout: &[T],
    silu: &mut [T],
    z: &mut [T],
) {
    // z becomes the slope of SiLU.
    if op.silu {
        for (z, silu) in z.iter_mut().zip(silu.iter_mut()) {
            let s = z.sigmoid();
            *silu = *z * s;
            *z = s + *silu * (T::ONE - s);
        }
    } else {
        silu.copy_from_slice(z);
        z.fill(T::ONE);
    }
    let normed = op.norm_heads * op.head_dim;
    for at in (0..normed).step_by(op.head_dim) {
        let part = at..at + op.head_dim;
        let (s, d, z) = (&silu[part.clone()], &dout[part.clone()], &mut z[part]);
        let scale = T::ONE / (dot(s, s) + eps).sqrt();
        let along = dot(d, s) * scale * scale;
        for ((z, &s), &d) in z.iter_mut().zip(s).zip(d) {
            *z *= scale * (d - s * along);
        }
    }
    for (z, &d) in z[normed..].iter_mut().zip(&dout[normed..]) {
        *z *= d;
    }
}
