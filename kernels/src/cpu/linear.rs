//! CPU: products with weights.

use super::gemm::{Factor, GemmScratch, Into, PACKED_B, gemm, gemm_periodic};
use super::real::Real;
use super::store::Scope;
use super::work::{Need, Work};
use crate::ops;
use crate::plan::Plan;

fn need<T: Real>(k: usize, n: usize) -> Need {
    Need {
        packed_b: GemmScratch::<T>::packed_len(k, n),
        ..Need::default()
    }
}

/// Working memory of [`linear`].
pub fn linear_need<T: Real>(op: &ops::Linear) -> Need {
    need::<T>(op.x.width, op.out.width)
}

/// See [`ops::Linear`].
pub fn linear<T: Real>(op: &ops::Linear, scope: &Scope<T>, work: &Work<T>) {
    let (x, weight) = (scope.columns(op.x), scope.mat(op.weight));
    let out = scope.columns_mut(op.out);
    gemm(
        &work.gemm,
        Factor::plain(x),
        Factor::transposed(weight),
        out,
        Into::Set,
    );
}

/// Working memory of [`linear_backward_input`].
pub fn linear_backward_input_need<T: Real>(op: &ops::LinearBackwardInput) -> Need {
    need::<T>(op.dout.width, op.dx.width)
}

/// See [`ops::LinearBackwardInput`].
pub fn linear_backward_input<T: Real>(op: &ops::LinearBackwardInput, scope: &Scope<T>, work: &Work<T>) {
    let (dout, weight) = (scope.columns(op.dout), scope.mat(op.weight));
    let dx = scope.columns_mut(op.dx);
    gemm(
        &work.gemm,
        Factor::plain(dout),
        Factor::plain(weight),
        dx,
        Into::Set,
    );
}

/// Sequences whose products with an input of `n` columns are formed at a time: as many as one packing holds.
fn sequences_at_once(plan: &Plan, n: usize) -> usize {
    let of_one = GemmScratch::<f64>::packed_len(plan.geometry.seq_length, n);
    (PACKED_B / of_one.max(1)).clamp(1, plan.geometry.micro_batch_size)
}

/// Working memory of [`linear_backward_weight`].
pub fn linear_backward_weight_need<T: Real>(op: &ops::LinearBackwardWeight, plan: &Plan) -> Need {
    let sequences = sequences_at_once(plan, op.x.width);
    need::<T>(sequences * plan.geometry.seq_length, op.x.width)
}

/// See [`ops::LinearBackwardWeight`]: one accumulating product per sequence.
pub fn linear_backward_weight<T: Real>(op: &ops::LinearBackwardWeight, scope: &Scope<T>, work: &Work<T>) {
    let (dout, x) = (scope.columns(op.dout), scope.columns(op.x));
    let mut dweight = scope.mat_mut(op.dweight);
    let seq_length = scope.plan().geometry.seq_length;
    let at_once = sequences_at_once(scope.plan(), op.x.width) * seq_length;
    for first in (0..x.rows).step_by(at_once) {
        let rows = at_once.min(x.rows - first);
        gemm_periodic(
            &work.gemm,
            Factor::transposed(dout.rows_at(first, rows)),
            Factor::plain(x.rows_at(first, rows)),
            dweight.reborrow(),
            Into::Add,
            seq_length,
        );
    }
}
