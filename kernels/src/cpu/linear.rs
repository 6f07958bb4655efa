//! CPU: products with weights.

use super::gemm::{Factor, GemmScratch, Into, gemm};
use super::real::Real;
use super::store::Scope;
use super::work::{Need, Work};
use crate::ops;
use crate::plan::{Geometry, Plan};

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

/// Working memory of [`linear_backward_weight`].
pub fn linear_backward_weight_need<T: Real>(op: &ops::LinearBackwardWeight, plan: &Plan) -> Need {
    need::<T>(plan.geometry.seq_length, op.x.width)
}

/// See [`ops::LinearBackwardWeight`]: one accumulating product per sequence.
pub fn linear_backward_weight<T: Real>(op: &ops::LinearBackwardWeight, scope: &Scope<T>, work: &Work<T>) {
    let (dout, x) = (scope.columns(op.dout), scope.columns(op.x));
    let mut dweight = scope.mat_mut(op.dweight);
    let Geometry {
        micro_batch_size,
        seq_length,
        ..
    } = scope.plan().geometry;
    for sequence in 0..micro_batch_size {
        let first = sequence * seq_length;
        let (dout, x) = (dout.rows_at(first, seq_length), x.rows_at(first, seq_length));
        gemm(
            &work.gemm,
            Factor::transposed(dout),
            Factor::plain(x),
            dweight.reborrow(),
            Into::Add,
        );
    }
}
