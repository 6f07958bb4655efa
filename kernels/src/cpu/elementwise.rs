//! CPU: clearing, adding, embedding, SwiGLU, gates.

use rayon::prelude::*;

use super::matrix::MatMut;
use super::real::{Real, vectorized};
use super::store::Scope;
use super::work::{ELEMENTS, Need, Work, add_block_sums, lock};
use crate::ops;
use crate::plan::{Plan, Role};

/// See [`ops::Zero`].
pub fn zero<T: Real>(op: &ops::Zero, scope: &mut Scope<T>) {
    for &id in &op.buffers {
        if scope.plan().buffer(id).role == Role::Scalar {
            scope.scalars(id).iter().for_each(|x| x.set(0.0));
        } else {
            scope.release();
            scope
                .slice_mut(id)
                .par_chunks_mut(ELEMENTS)
                .for_each(|part| part.fill(T::ZERO));
        }
    }
}

/// See [`ops::AddInto`].
pub fn add_into<T: Real>(op: &ops::AddInto, scope: &Scope<T>) {
    let (source, target) = (scope.slice(op.source), scope.slice_mut(op.target));
    target
        .par_chunks_mut(ELEMENTS)
        .zip(source.par_chunks(ELEMENTS))
        .for_each(|(to, from)| {
            vectorized(
                #[inline(always)]
                || to.iter_mut().zip(from).for_each(|(y, &x)| *y += x),
            );
        });
}

/// See [`ops::Embedding`].
pub fn embedding<T: Real>(op: &ops::Embedding, scope: &Scope<T>, work: &Work<T>) {
    let (tokens, table) = (scope.ids(op.tokens), scope.mat(op.table));
    let out = scope.mat_mut(op.out);
    out.par_row_blocks(&work.blocks)
        .zip(&work.blocks)
        .for_each(|(mut out, block)| {
            for r in 0..block.rows {
                out.row(r)
                    .copy_from_slice(table.row(tokens[block.first + r] as usize));
            }
        });
}

/// See [`ops::EmbeddingBackward`]. Each task owns a block of columns and walks all rows in order.
pub fn embedding_backward<T: Real>(op: &ops::EmbeddingBackward, scope: &Scope<T>) {
    const COLUMNS: usize = 64;
    let (tokens, dout) = (scope.ids(op.tokens), scope.mat(op.dout));
    let dtable = scope.mat_mut(op.dtable);
    dtable
        .par_column_blocks(COLUMNS)
        .enumerate()
        .for_each(|(i, mut dtable)| {
            let dout = dout.columns_at(i * COLUMNS, dtable.width);
            for (r, &token) in tokens.iter().enumerate() {
                let (to, from) = (dtable.row(token as usize), dout.row(r));
                to.iter_mut().zip(from).for_each(|(y, &x)| *y += x);
            }
        });
}

/// See [`ops::SwiGlu`].
pub fn swiglu<T: Real>(op: &ops::SwiGlu, scope: &Scope<T>, work: &Work<T>) {
    let (gate_up, out) = (scope.mat(op.gate_up), scope.mat_mut(op.out));
    out.par_row_blocks(&work.blocks)
        .zip(&work.blocks)
        .for_each(|(mut out, block)| {
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..block.rows {
                        let out = out.row(r);
                        let (gate, up) = gate_up.row(block.first + r).split_at(out.len());
                        for ((y, &g), &u) in out.iter_mut().zip(gate).zip(up) {
                            *y = g * g.sigmoid() * u;
                        }
                    }
                },
            );
        });
}

/// See [`ops::SwiGluBackward`].
pub fn swiglu_backward<T: Real>(op: &ops::SwiGluBackward, scope: &Scope<T>, work: &Work<T>) {
    if let Some(out) = op.out {
        let gate_up = op.gate_up;
        swiglu(&ops::SwiGlu { gate_up, out }, scope, work);
    }
    let (gate_up, dout) = (scope.mat(op.gate_up), scope.mat(op.dout));
    let dgate_up = scope.mat_mut(op.dgate_up);
    dgate_up
        .par_row_blocks(&work.blocks)
        .zip(&work.blocks)
        .for_each(|(mut dgate_up, block)| {
            vectorized(
                #[inline(always)]
                || {
                    for r in 0..block.rows {
                        let d = dout.row(block.first + r);
                        let (gate, up) = gate_up.row(block.first + r).split_at(d.len());
                        let (dgate, dup) = dgate_up.row(r).split_at_mut(d.len());
                        for ((((dg, du), &d), &g), &u) in dgate.iter_mut().zip(dup).zip(d).zip(gate).zip(up) {
                            let s = g.sigmoid();
                            let silu = g * s;
                            *du = d * silu;
                            // silu' = s (1 + x (1 - s)) = s + silu (1 - s)
                            *dg = d * u * (s + silu * (T::ONE - s));
                        }
                    }
                },
            );
        });
}

/// Above this, softplus is the identity (`torch.nn.functional.softplus`).
const SOFTPLUS_LINEAR: f64 = 20.0;

/// `ln(1 + e^x)`.
fn softplus(x: f64) -> f64 {
    if x > SOFTPLUS_LINEAR { x } else { x.exp().ln_1p() }
}

/// Derivative of [`softplus`].
fn softplus_slope(x: f64) -> f64 {
    if x > SOFTPLUS_LINEAR {
        1.0
    } else {
        1.0 / (1.0 + (-x).exp())
    }
}

/// See [`ops::Gates`]. A few values per row: computed in f64 and rounded once.
pub fn gates<T: Real>(op: &ops::Gates, scope: &Scope<T>, work: &Work<T>) {
    let (a, b) = (scope.columns(op.a), scope.columns(op.b));
    let (a_log, dt_bias) = (scope.slice(op.a_log), scope.slice(op.dt_bias));
    let (g, beta) = (scope.mat_mut(op.g), scope.mat_mut(op.beta));
    let outputs = g
        .par_row_blocks(&work.blocks)
        .zip(beta.par_row_blocks(&work.blocks));
    outputs.zip(&work.blocks).for_each(|((mut g, mut beta), block)| {
        for r in 0..block.rows {
            let (a, b) = (a.row(block.first + r), b.row(block.first + r));
            for (h, y) in g.row(r).iter_mut().enumerate() {
                *y = T::of(-a_log[h].f64().exp() * softplus(a[h].f64() + dt_bias[h].f64()));
            }
            for (y, x) in beta.row(r).iter_mut().zip(b) {
                *y = T::of(op.beta_scale / (1.0 + (-x.f64()).exp()));
            }
        }
    });
}

/// Working memory of [`gates_backward`].
pub fn gates_backward_need(op: &ops::GatesBackward, plan: &Plan, blocks: usize) -> Need {
    Need {
        shared: blocks * 2 * plan.buffer(op.a_log).len(),
        ..Need::default()
    }
}

/// See [`ops::GatesBackward`].
pub fn gates_backward<T: Real>(op: &ops::GatesBackward, scope: &Scope<T>, work: &Work<T>) {
    let a = scope.columns(op.a);
    let (a_log, dt_bias) = (scope.slice(op.a_log), scope.slice(op.dt_bias));
    let (g, beta) = (scope.mat(op.g), scope.mat(op.beta));
    let (dg, dbeta) = (scope.mat(op.dg), scope.mat(op.dbeta));
    let (da, db) = (scope.columns_mut(op.da), scope.columns_mut(op.db));
    let heads = a_log.len();
    let mut shared = lock(&work.shared);
    let partials = MatMut::dense(&mut shared[..work.blocks.len() * 2 * heads], 2 * heads);
    let outputs = da
        .par_row_blocks(&work.blocks)
        .zip(db.par_row_blocks(&work.blocks));
    outputs
        .zip(partials.par_rows())
        .zip(&work.blocks)
        .for_each(|(((mut da, mut db), sums), block)| {
            sums.fill(T::ZERO);
            let (bias_sums, log_sums) = sums.split_at_mut(heads);
            for r in 0..block.rows {
                let row = block.first + r;
                let (a, g, dg) = (a.row(row), g.row(row), dg.row(row));
                for (h, y) in da.row(r).iter_mut().enumerate() {
                    let slope = -a_log[h].f64().exp() * softplus_slope(a[h].f64() + dt_bias[h].f64());
                    *y = T::of(dg[h].f64() * slope);
                    bias_sums[h] += *y;
                    log_sums[h] += dg[h] * g[h];
                }
                let scale = T::of(op.beta_scale);
                for ((y, &d), &beta) in db.row(r).iter_mut().zip(dbeta.row(row)).zip(beta.row(row)) {
                    *y = d * beta * (T::ONE - beta / scale);
                }
            }
        });
    let (da_log, ddt_bias) = (scope.slice_mut(op.da_log), scope.slice_mut(op.ddt_bias));
    add_block_sums(
        &work.blocks,
        &mut shared[..work.blocks.len() * 2 * heads],
        2 * heads,
        |i, x| {
            if i < heads {
                ddt_bias[i] += x
            } else {
                da_log[i - heads] += x
            }
        },
    );
}
