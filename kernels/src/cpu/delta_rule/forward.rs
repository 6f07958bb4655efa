//! Forward pass of the chunked gated delta rule.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::documents::{Document, Documents};
use super::super::gemm::{Factor, Into, gemm_small};
use super::super::matrix::{Mat, MatMut};
use super::super::real::{Real, isa};
use super::super::store::Scope;
use super::super::work::{Work, take};
use super::solve::solve;
use super::*;

/// Where the forward pass puts its results; parts of these are handed to tasks that touch disjoint elements.
pub(super) struct Outputs<'a, T> {
    pub(super) o: Option<MatMut<'a, T>>,
    pub(super) u: Option<MatMut<'a, T>>,
    pub(super) states: Option<MatMut<'a, T>>,
    pub(super) last: Option<MatMut<'a, T>>,
}

/// See [`ops::DeltaRule`].
pub fn delta_rule<T: Real>(op: &ops::DeltaRule, scope: &Scope<T>, work: &Work<T>, documents: &Documents) {
    let inputs = Inputs {
        q: scope.columns(op.q),
        k: scope.columns(op.k),
        v: scope.columns(op.v),
        g: scope.mat(op.g),
        beta: scope.mat(op.beta),
        initial: op.initial_state.map(|id| scope.slice(id)),
        scale: T::of(op.scale),
        shape: op.shape,
    };
    let outputs = Outputs {
        o: Some(scope.mat_mut(op.o)),
        u: op.u.map(|id| scope.mat_mut(id)),
        states: op.chunk_states.map(|id| scope.mat_mut(id)),
        last: op.final_state.map(|id| scope.mat_mut(id)),
    };
    forward(&inputs, &outputs, work, documents);
}

pub(super) fn forward<T: Real>(
    inputs: &Inputs<T>,
    outputs: &Outputs<T>,
    work: &Work<T>,
    documents: &Documents,
) {
    struct Task<'a, 'b, T> {
        inputs: &'a Inputs<'b, T>,
        outputs: &'a Outputs<'b, T>,
        document: usize,
        place: Document,
        head: usize,
        memory: &'a mut [T],
    }
    impl<T: Real> WithSimd for Task<'_, '_, T> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            forward_document(
                simd,
                self.inputs,
                self.outputs,
                self.document,
                self.place,
                self.head,
                self.memory,
            );
        }
    }
    let heads = inputs.shape.key_heads;
    (0..documents.list.len() * heads)
        .into_par_iter()
        .for_each(|task| {
            let (document, head) = (task / heads, task % heads);
            let place = documents.list[document];
            work.with_worker(|memory| {
                Simd::vectorize(
                    isa(),
                    Task {
                        inputs,
                        outputs,
                        document,
                        place,
                        head,
                        memory,
                    },
                );
            });
        });
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn forward_document<T: Real, S: Simd>(
    simd: S,
    inputs: &Inputs<T>,
    outputs: &Outputs<T>,
    document: usize,
    place: Document,
    head: usize,
    memory: &mut [T],
) {
    let DeltaRuleShape {
        key_heads,
        value_heads,
        key_dim: kd,
        value_dim: vd,
    } = inputs.shape;
    let group = value_heads / key_heads;
    let state_len = kd * vd;
    let mut memory = memory;
    let tail = take(&mut memory, SMALL_TAIL);
    let kt = take(&mut memory, kd * CHUNK);
    let kk = take(&mut memory, CHUNK * CHUNK);
    let qk = take(&mut memory, CHUNK * CHUNK);
    let decay = take(&mut memory, CHUNK * CHUNK);
    let a = take(&mut memory, CHUNK * CHUNK);
    let x = take(&mut memory, CHUNK * vd);
    let decayed = take(&mut memory, CHUNK * vd);
    let state = take(&mut memory, state_len);
    for j in head * group..(head + 1) * group {
        match inputs.initial {
            Some(initial) => {
                state.copy_from_slice(&initial[(document * value_heads + j) * state_len..][..state_len]);
            }
            None => state.fill(T::ZERO),
        }
        for (chunk, at) in (0..place.rows).step_by(CHUNK).enumerate() {
            let (first, len) = (place.first + at, CHUNK.min(place.rows - at));
            let q = inputs.q.rows_at(first, len).columns_at(head * kd, kd);
            let k = inputs.k.rows_at(first, len).columns_at(head * kd, kd);
            let v = inputs.v.rows_at(first, len).columns_at(j * vd, vd);
            products(simd, q, k, kt, kk, qk, tail);
            let d = decays(inputs.g, first, len, j, decay);
            if let Some(states) = &outputs.states {
                let index = place.first_chunk + chunk;
                // SAFETY: this task alone writes the states of its document's chunks and its heads.
                let mut to = unsafe { states.part(index, 1, j * state_len, state_len) };
                to.row(0).copy_from_slice(state);
            }
            // x = beta (v - exp(G) K S), then x = u
            let x = &mut x[..len * vd];
            let s = Mat::dense(state, vd);
            gemm_small(simd, Factor::plain(k), s, MatMut::dense(x, vd), Into::Set, tail);
            for t in 0..len {
                let beta = inputs.beta.row(first + t)[j];
                for (x, &v) in x[t * vd..][..vd].iter_mut().zip(v.row(t)) {
                    *x = beta * (v - d.from_start[t] * *x);
                }
                let row = t * CHUNK..(t + 1) * CHUNK;
                decayed_row(&mut a[row.clone()], t, beta, &decay[row.clone()], &kk[row]);
            }
            solve(simd, a, x, len, vd, tail);
            if let Some(u) = &outputs.u {
                // SAFETY: this task alone writes the rows of its document in its heads' columns.
                let mut u = unsafe { u.part(first, len, j * vd, vd) };
                (0..len).for_each(|t| u.row(t).copy_from_slice(&x[t * vd..][..vd]));
            }
            if let Some(o) = &outputs.o {
                // SAFETY: this task alone writes the rows of its document in its heads' columns.
                let mut o = unsafe { o.part(first, len, j * vd, vd) };
                gemm_small(simd, Factor::plain(q), s, o.reborrow(), Into::Set, tail);
                for t in 0..len {
                    let factor = inputs.scale * d.from_start[t];
                    o.row(t).iter_mut().for_each(|y| *y *= factor);
                    let row = t * CHUNK..(t + 1) * CHUNK;
                    let p = &mut a[row.clone()];
                    decayed_row(p, t, inputs.scale, &decay[row.clone()], &qk[row]);
                    p[t + 1..len].fill(T::ZERO);
                }
                let p = Mat::new(a, len, len, CHUNK);
                gemm_small(simd, Factor::plain(p), Mat::dense(x, vd), o, Into::Add, tail);
            }
            // S = exp(G_L) S + Kᵀ diag(exp(G_L - G)) u
            for t in 0..len {
                let to = &mut decayed[t * vd..][..vd];
                to.iter_mut()
                    .zip(&x[t * vd..])
                    .for_each(|(y, &x)| *y = d.to_end[t] * x);
            }
            state.iter_mut().for_each(|s| *s *= d.whole);
            let decayed = Mat::dense(&decayed[..len * vd], vd);
            gemm_small(
                simd,
                Factor::transposed(k),
                decayed,
                MatMut::dense(state, vd),
                Into::Add,
                tail,
            );
        }
        if let Some(last) = &outputs.last {
            // SAFETY: this task alone writes its document's state of its heads.
            let mut to = unsafe { last.part(document, 1, j * state_len, state_len) };
            to.row(0).copy_from_slice(state);
        }
    }
}
