//! CPU: RMSNorm with residual addition, and the gated RMSNorm.

use rayon::prelude::*;

use super::matrix::MatMut;
use super::real::{Real, dot, dot3, vectorized};
use super::store::Scope;
use super::work::{Need, Work, add_block_sums, lock};
use crate::ops::{self, GateActivation};
use crate::plan::Plan;

/// See [`ops::AddRmsNorm`].
pub fn add_rms_norm<T: Real>(op: &ops::AddRmsNorm, scope: &Scope<T>, work: &Work<T>) {
    let x = scope.mat(op.x);
    let branches = op.branches.map(|id| id.map(|id| scope.mat(id)));
    let weight = scope.slice(op.weight);
    let n = T::of(weight.len() as f64);
    let eps = T::of(op.eps);
    let (out, rstd) = (scope.mat_mut(op.out), MatMut::dense(scope.slice_mut(op.rstd), 1));
    // A sum that nobody keeps has no columns in the views below.
    let sum = match op.sum {
        Some(id) => scope.mat_mut(id),
        None => MatMut::new(&mut [], x.rows, 0, 0),
    };
    let outputs = out
        .par_row_blocks(&work.blocks)
        .zip(rstd.par_row_blocks(&work.blocks));
    let outputs = outputs.zip(sum.par_row_blocks(&work.blocks));
    outputs
        .zip(&work.blocks)
        .for_each(|(((mut out, mut rstd), mut sum), block)| {
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..block.rows {
                        let out = out.row(r);
                        out.copy_from_slice(x.row(block.first + r));
                        for branch in branches.iter().flatten() {
                            let branch = branch.row(block.first + r);
                            out.iter_mut().zip(branch).for_each(|(s, &b)| *s += b);
                        }
                        if op.sum.is_some() {
                            sum.row(r).copy_from_slice(out);
                        }
                        let scale = T::ONE / (dot(out, out) / n + eps).sqrt();
                        rstd.row(r)[0] = scale;
                        out.iter_mut().zip(weight).for_each(|(s, &w)| *s = *s * scale * w);
                    }
                },
            );
        });
}

/// Working memory of [`add_rms_norm_backward`].
pub fn add_rms_norm_backward_need(op: &ops::AddRmsNormBackward, plan: &Plan, blocks: usize) -> Need {
    let width = plan.buffer(op.weight).len();
    Need {
        shared: blocks * width,
        worker: width,
        ..Need::default()
    }
}

/// See [`ops::AddRmsNormBackward`].
pub fn add_rms_norm_backward<T: Real>(op: &ops::AddRmsNormBackward, scope: &Scope<T>, work: &Work<T>) {
    let (x, rstd, dout) = (scope.mat(op.x), scope.slice(op.rstd), scope.mat(op.dout));
    let branch = op.branch.map(|id| scope.mat(id));
    let dresidual = op.dresidual.map(|id| scope.mat(id));
    let weight = scope.slice(op.weight);
    let width = weight.len();
    let n = T::of(width as f64);
    let dsum = scope.mat_mut(op.dsum);
    let optional = |id: Option<_>| match id {
        Some(id) => scope.mat_mut(id),
        None => MatMut::new(&mut [], x.rows, 0, 0),
    };
    let (dbranch, out) = (optional(op.dbranch), optional(op.out));
    let mut shared = lock(&work.shared);
    let partials = MatMut::dense(&mut shared[..work.blocks.len() * width], width);
    let outputs = dsum
        .par_row_blocks(&work.blocks)
        .zip(dbranch.par_row_blocks(&work.blocks))
        .zip(out.par_row_blocks(&work.blocks));
    let outputs = outputs.zip(partials.par_rows());
    outputs
        .zip(&work.blocks)
        .for_each(|((((mut dsum, mut dbranch), mut out), dweight), block)| {
            work.with_worker(|memory| {
                let sum = &mut memory[..width];
                vectorized(
                    #[inline(always)]
                    || {
                        dweight.fill(T::ZERO);
                        for r in 0..block.rows {
                            let row = block.first + r;
                            let (d, scale) = (dout.row(row), rstd[row]);
                            let s = match &branch {
                                Some(branch) => {
                                    let both = x.row(row).iter().zip(branch.row(row));
                                    sum.iter_mut().zip(both).for_each(|(s, (&x, &b))| *s = x + b);
                                    &*sum
                                }
                                None => x.row(row),
                            };
                            if op.out.is_some() {
                                let out = out.row(r).iter_mut();
                                out.zip(s)
                                    .zip(weight)
                                    .for_each(|((y, &s), &w)| *y = s * scale * w);
                            }
                            let mean = dot3(d, weight, s) * scale / n;
                            let to = dsum.row(r);
                            for ((((y, &s), &d), &w), dw) in
                                to.iter_mut().zip(s).zip(d).zip(weight).zip(dweight.iter_mut())
                            {
                                let normed = s * scale;
                                *dw = d.mul_add(normed, *dw);
                                *y = scale * (d * w - normed * mean);
                            }
                            if let Some(dresidual) = &dresidual {
                                to.iter_mut().zip(dresidual.row(row)).for_each(|(y, &x)| *y += x);
                            }
                            if op.dbranch.is_some() {
                                dbranch.row(r).copy_from_slice(to);
                            }
                        }
                    },
                )
            });
        });
    let dweight = scope.slice_mut(op.dweight);
    let partials = &mut shared[..work.blocks.len() * width];
    add_block_sums(&work.blocks, partials, width, |i, x| dweight[i] += x);
}

/// See [`ops::GatedRmsNorm`].
pub fn gated_rms_norm<T: Real>(op: &ops::GatedRmsNorm, scope: &Scope<T>, work: &Work<T>) {
    let x = scope.mat(op.x);
    let gate = op.gate.map(|c| scope.columns(c));
    let weight = scope.slice(op.weight);
    let (v, n, eps) = (weight.len(), T::of(weight.len() as f64), T::of(op.eps));
    let (out, rstd) = (scope.mat_mut(op.out), scope.mat_mut(op.rstd));
    let outputs = out
        .par_row_blocks(&work.blocks)
        .zip(rstd.par_row_blocks(&work.blocks));
    outputs
        .zip(&work.blocks)
        .for_each(|((mut out, mut rstd), block)| {
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..block.rows {
                        let x = x.row(block.first + r);
                        let out = out.row(r);
                        for (h, x) in x.chunks_exact(v).enumerate() {
                            let scale = T::ONE / (dot(x, x) / n + eps).sqrt();
                            rstd.row(r)[h] = scale;
                            let out = &mut out[h * v..][..v];
                            for ((y, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                                *y = x * scale * w;
                            }
                            if let Some(gate) = &gate {
                                let gate = &gate.row(block.first + r)[h * v..][..v];
                                let gated = out.iter_mut().zip(gate);
                                match op.activation {
                                    GateActivation::Swish => gated.for_each(|(y, &g)| *y *= g * g.sigmoid()),
                                    GateActivation::Sigmoid => gated.for_each(|(y, &g)| *y *= g.sigmoid()),
                                }
                            }
                        }
                    }
                },
            );
        });
}

/// Working memory of [`gated_rms_norm_backward`].
pub fn gated_rms_norm_backward_need(op: &ops::GatedRmsNormBackward, plan: &Plan, blocks: usize) -> Need {
    let v = plan.buffer(op.weight).len();
    Need {
        shared: blocks * v,
        worker: 2 * v,
        ..Need::default()
    }
}

/// See [`ops::GatedRmsNormBackward`].
pub fn gated_rms_norm_backward<T: Real>(op: &ops::GatedRmsNormBackward, scope: &Scope<T>, work: &Work<T>) {
    let (x, rstd, dout) = (scope.mat(op.x), scope.mat(op.rstd), scope.mat(op.dout));
    let gate = op.gate.map(|c| scope.columns(c));
    let weight = scope.slice(op.weight);
    let (v, n) = (weight.len(), T::of(weight.len() as f64));
    let dx = scope.mat_mut(op.dx);
    let dgate = match op.dgate {
        Some(c) => scope.columns_mut(c),
        None => MatMut::new(&mut [], x.rows, 0, 0),
    };
    let out = match op.out {
        Some(id) => scope.mat_mut(id),
        None => MatMut::new(&mut [], x.rows, 0, 0),
    };
    let mut shared = lock(&work.shared);
    let partials = MatMut::dense(&mut shared[..work.blocks.len() * v], v);
    let outputs = dx
        .par_row_blocks(&work.blocks)
        .zip(dgate.par_row_blocks(&work.blocks))
        .zip(out.par_row_blocks(&work.blocks));
    let outputs = outputs.zip(partials.par_rows());
    outputs
        .zip(&work.blocks)
        .for_each(|((((mut dx, mut dgate), mut out), dweight), block)| {
            work.with_worker(|memory| {
                vectorized(
                    #[inline(always)]
                    || {
                        dweight.fill(T::ZERO);
                        for (r, row) in (block.first..block.end()).enumerate() {
                            for (h, &scale) in rstd.row(row).iter().enumerate() {
                                let part = h * v..(h + 1) * v;
                                let head = Head {
                                    x: &x.row(row)[part.clone()],
                                    dout: &dout.row(row)[part.clone()],
                                    dx: &mut dx.row(r)[part.clone()],
                                    gate: gate.map(|gate| &gate.row(row)[part.clone()]),
                                    dgate: match gate {
                                        Some(_) => &mut dgate.row(r)[part.clone()],
                                        None => &mut [],
                                    },
                                    out: op.out.map(|_| &mut out.row(r)[part]),
                                };
                                gated_head_backward(head, scale, n, weight, op.activation, dweight, memory);
                            }
                        }
                    },
                )
            });
        });
    let dweight = scope.slice_mut(op.dweight);
    let partials = &mut shared[..work.blocks.len() * v];
    add_block_sums(&work.blocks, partials, v, |i, x| dweight[i] += x);
}

/// Values of one head of one row.
struct Head<'a, T> {
    x: &'a [T],
    dout: &'a [T],
    dx: &'a mut [T],
    gate: Option<&'a [T]>,
    dgate: &'a mut [T],
    out: Option<&'a mut [T]>,
}

#[inline(always)]
fn gated_head_backward<T: Real>(
    head: Head<T>,
    scale: T,
    n: T,
    weight: &[T],
    activation: GateActivation,
    dweight: &mut [T],
    memory: &mut [T],
) {
    let v = weight.len();
    let Head {
        x,
        dout,
        dx,
        gate,
        dgate,
        out,
    } = head;
    // d: gradient of the normed and weighted value.
    let (active, d) = memory[..2 * v].split_at_mut(v);
    match gate {
        Some(gate) => {
            // The activation, and its slope in d.
            for ((&g, active), d) in gate.iter().zip(active.iter_mut()).zip(d.iter_mut()) {
                let s = g.sigmoid();
                (*active, *d) = match activation {
                    GateActivation::Swish => (g * s, s + g * s * (T::ONE - s)),
                    GateActivation::Sigmoid => (s, s * (T::ONE - s)),
                };
            }
            if let Some(out) = out {
                for i in 0..v {
                    out[i] = x[i] * scale * weight[i] * active[i];
                }
            }
            for i in 0..v {
                dgate[i] = dout[i] * (x[i] * scale * weight[i]) * d[i];
                d[i] = dout[i] * active[i];
            }
        }
        None => {
            if let Some(out) = out {
                for i in 0..v {
                    out[i] = x[i] * scale * weight[i];
                }
            }
            d.copy_from_slice(dout);
        }
    }
    let mean = dot3(d, weight, x) * scale / n;
    for i in 0..v {
        let normed = x[i] * scale;
        dweight[i] = d[i].mul_add(normed, dweight[i]);
        dx[i] = scale * (d[i] * weight[i] - normed * mean);
    }
}
