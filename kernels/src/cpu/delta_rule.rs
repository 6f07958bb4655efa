//! CPU: the chunked gated delta rule.
//!
//! One task per document and key head walks the chunks in order (backwards in the backward pass) for the value heads
//! of its group. Decays are differences of cumulative sums, formed in f64 and rounded once, so that a strong decay
//! early in a chunk does not cost later tokens their precision; no exponential has a positive argument. The unit
//! triangular system is solved by forward substitution in blocks of [`SOLVE`] rows, not by forming an inverse.
//!
//! Memory per worker: a few `64 x 64`, `64 x V`, `K x 64` and `K x V` matrices.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::documents::{Document, Documents};
use super::gemm::{Factor, Into, SMALL_TAIL, gemm_small};
use super::matrix::{Mat, MatMut};
use super::real::{Real, dot, isa, sum};
use super::store::Scope;
use super::work::{Need, Work, take};
use crate::ops::{self, CHUNK, DeltaRuleShape};

/// Rows per block of the triangular solve.
const SOLVE: usize = 16;

/// Working memory of [`delta_rule`].
pub fn need(shape: &DeltaRuleShape) -> Need {
    let (k, v) = (shape.key_dim, shape.value_dim);
    let worker = SMALL_TAIL + k * CHUNK + 4 * CHUNK * CHUNK + 2 * CHUNK * v + k * v;
    Need {
        worker,
        ..Need::default()
    }
}

/// Working memory of [`delta_rule_backward`].
pub fn backward_need(shape: &DeltaRuleShape) -> Need {
    let (k, v) = (shape.key_dim, shape.value_dim);
    let group = shape.value_heads / shape.key_heads;
    let worker =
        SMALL_TAIL + k * CHUNK + 8 * CHUNK * CHUNK + 4 * CHUNK * v + 3 * CHUNK * k + (2 + group) * k * v;
    Need {
        worker,
        ..Need::default()
    }
    .max(need(shape))
}

/// Matrix views of one document and key head: queries, keys, and per value head the rest.
#[derive(Clone, Copy)]
struct Inputs<'a, T> {
    q: Mat<'a, T>,
    k: Mat<'a, T>,
    v: Mat<'a, T>,
    g: Mat<'a, T>,
    beta: Mat<'a, T>,
    initial: Option<&'a [T]>,
    scale: T,
    shape: DeltaRuleShape,
}

/// Where the forward pass puts its results; parts of these are handed to tasks that touch disjoint elements.
struct Outputs<'a, T> {
    o: Option<MatMut<'a, T>>,
    u: Option<MatMut<'a, T>>,
    states: Option<MatMut<'a, T>>,
    last: Option<MatMut<'a, T>>,
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

fn forward<T: Real>(inputs: &Inputs<T>, outputs: &Outputs<T>, work: &Work<T>, documents: &Documents) {
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

/// What a chunk needs of one value head: decays.
struct Decays<T> {
    /// `exp(G_t)`.
    from_start: [T; CHUNK],
    /// `exp(G_L - G_t)`.
    to_end: [T; CHUNK],
    /// `exp(G_L)`.
    whole: T,
}

/// `exp` of the cumulative log decays of a chunk; `decay[t, s] = exp(G_t - G_s)` for `s <= t` (the rest untouched).
#[inline(always)]
fn decays<T: Real>(g: Mat<T>, first: usize, len: usize, head: usize, decay: &mut [T]) -> Decays<T> {
    let mut sums = [0.0f64; CHUNK];
    let mut total = 0.0;
    for (t, sum) in sums[..len].iter_mut().enumerate() {
        total += g.row(first + t)[head].f64();
        *sum = total;
    }
    let mut d = Decays {
        from_start: [T::ZERO; CHUNK],
        to_end: [T::ZERO; CHUNK],
        whole: T::of(total).exp(),
    };
    for t in 0..len {
        d.from_start[t] = T::of(sums[t]).exp();
        d.to_end[t] = T::of(total - sums[t]).exp();
        let now = sums[t];
        for (y, &then) in decay[t * CHUNK..][..t + 1].iter_mut().zip(&sums) {
            *y = T::of(now - then).exp();
        }
    }
    d
}

/// `to = fromᵀ`, `to` dense with `stride` values per row.
#[inline(always)]
fn transpose<T: Real>(from: Mat<T>, to: &mut [T], stride: usize) {
    const TILE: usize = 8;
    for r0 in (0..from.rows).step_by(TILE) {
        let rows = TILE.min(from.rows - r0);
        for c0 in (0..from.width).step_by(TILE) {
            let columns = TILE.min(from.width - c0);
            let mut tile = [[T::ZERO; TILE]; TILE];
            #[allow(clippy::needless_range_loop)] // r is the second index of the tile
            for r in 0..rows {
                let row = &from.row(r0 + r)[c0..c0 + columns];
                for (c, &x) in row.iter().enumerate() {
                    tile[c][r] = x;
                }
            }
            for (c, column) in tile[..columns].iter().enumerate() {
                to[(c0 + c) * stride + r0..][..rows].copy_from_slice(&column[..rows]);
            }
        }
    }
}

/// The matrices a group of value heads shares: `k kᵀ` and `q kᵀ` (both `[L, L]`, stride [`CHUNK`]).
#[inline(always)]
fn products<T: Real, S: Simd>(
    simd: S,
    q: Mat<T>,
    k: Mat<T>,
    kt: &mut [T],
    kk: &mut [T],
    qk: &mut [T],
    tail: &mut [T],
) {
    let len = k.rows;
    transpose(k, kt, CHUNK);
    let kt = Mat::new(kt, k.width, len, CHUNK);
    gemm_small(
        simd,
        Factor::plain(k),
        kt,
        MatMut::new(kk, len, len, CHUNK),
        Into::Set,
        tail,
    );
    gemm_small(
        simd,
        Factor::plain(q),
        kt,
        MatMut::new(qk, len, len, CHUNK),
        Into::Set,
        tail,
    );
}

/// `x ← (I + a)^-1 x`, a strictly lower triangular (stride [`CHUNK`]), x `[L, V]` dense.
#[inline(always)]
fn solve<T: Real, S: Simd>(simd: S, a: &[T], x: &mut [T], len: usize, v: usize, tail: &mut [T]) {
    for first in (0..len).step_by(SOLVE) {
        let rows = SOLVE.min(len - first);
        let (done, rest) = x.split_at_mut(first * v);
        if first > 0 {
            let left = Mat::new(&a[first * CHUNK..], rows, first, CHUNK);
            let to = MatMut::dense(&mut rest[..rows * v], v);
            gemm_small(
                simd,
                Factor::plain(left),
                Mat::dense(done, v),
                to,
                Into::Sub,
                tail,
            );
        }
        for t in 1..rows {
            let (before, row) = rest.split_at_mut(t * v);
            let weights = &a[(first + t) * CHUNK + first..][..t];
            for (before, &w) in before.chunks_exact(v).zip(weights) {
                row[..v]
                    .iter_mut()
                    .zip(before)
                    .for_each(|(y, &x)| *y = (-w).mul_add(x, *y));
            }
        }
    }
}

/// `x ← (I + a)^-T x`.
#[inline(always)]
fn solve_transposed<T: Real, S: Simd>(simd: S, a: &[T], x: &mut [T], len: usize, v: usize, tail: &mut [T]) {
    for first in (0..len).step_by(SOLVE).rev() {
        let rows = SOLVE.min(len - first);
        let end = first + rows;
        let (head, done) = x.split_at_mut(end * v);
        let block = &mut head[first * v..];
        if end < len {
            let below = Mat::new(&a[end * CHUNK..], len - end, CHUNK, CHUNK).columns_at(first, rows);
            let done = Mat::dense(&done[..(len - end) * v], v);
            gemm_small(
                simd,
                Factor::transposed(below),
                done,
                MatMut::dense(block, v),
                Into::Sub,
                tail,
            );
        }
        for t in (0..rows - 1).rev() {
            let (row, after) = block[t * v..].split_at_mut(v);
            for (s, after) in after.chunks_exact(v).enumerate() {
                let w = a[(first + t + 1 + s) * CHUNK + first + t];
                row.iter_mut()
                    .zip(after)
                    .for_each(|(y, &x)| *y = (-w).mul_add(x, *y));
            }
        }
    }
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
                for s in 0..t {
                    a[t * CHUNK + s] = beta * decay[t * CHUNK + s] * kk[t * CHUNK + s];
                }
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
                    let (p, rest) = a[t * CHUNK..][..len].split_at_mut(t + 1);
                    for ((p, &d), &qk) in p.iter_mut().zip(&decay[t * CHUNK..]).zip(&qk[t * CHUNK..]) {
                        *p = inputs.scale * d * qk;
                    }
                    rest.fill(T::ZERO);
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

/// Where the backward pass puts its results.
struct Gradients<'a, T> {
    dq: MatMut<'a, T>,
    dk: MatMut<'a, T>,
    dv: MatMut<'a, T>,
    dg: MatMut<'a, T>,
    dbeta: MatMut<'a, T>,
    dinitial: Option<MatMut<'a, T>>,
}

/// What the forward pass left, and the gradients that come in.
#[derive(Clone, Copy)]
struct Saved<'a, T> {
    u: Mat<'a, T>,
    states: Mat<'a, T>,
    dout: Mat<'a, T>,
    dlast: Option<&'a [T]>,
}

/// See [`ops::DeltaRuleBackward`].
pub fn delta_rule_backward<T: Real>(
    op: &ops::DeltaRuleBackward,
    scope: &Scope<T>,
    work: &Work<T>,
    documents: &Documents,
) {
    struct Task<'a, 'b, T> {
        inputs: &'a Inputs<'b, T>,
        saved: &'a Saved<'b, T>,
        gradients: &'a Gradients<'b, T>,
        document: usize,
        place: Document,
        head: usize,
        memory: &'a mut [T],
    }
    impl<T: Real> WithSimd for Task<'_, '_, T> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Task {
                inputs,
                saved,
                gradients,
                document,
                place,
                head,
                memory,
            } = self;
            backward_document(simd, inputs, saved, gradients, document, place, head, memory);
        }
    }
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
    let (u, states);
    if op.recompute {
        let (mut own_u, mut own_states) = (scope.mat_mut(op.u), scope.mat_mut(op.chunk_states));
        let outputs = Outputs {
            o: None,
            u: Some(own_u.reborrow()),
            states: Some(own_states.reborrow()),
            last: None,
        };
        forward(&inputs, &outputs, work, documents);
        // SAFETY: the writing views end here; the scope has recorded both buffers as this operator's.
        u = unsafe { Mat::from_raw(own_u.as_mut_ptr(), own_u.rows, own_u.width, own_u.stride) };
        // SAFETY: as above.
        states = unsafe {
            Mat::from_raw(
                own_states.as_mut_ptr(),
                own_states.rows,
                own_states.width,
                own_states.stride,
            )
        };
    } else {
        (u, states) = (scope.mat(op.u), scope.mat(op.chunk_states));
    }
    let saved = Saved {
        u,
        states,
        dout: scope.mat(op.dout),
        dlast: op.dfinal_state.map(|id| scope.slice(id)),
    };
    let gradients = Gradients {
        dq: scope.columns_mut(op.dq),
        dk: scope.columns_mut(op.dk),
        dv: scope.columns_mut(op.dv),
        dg: scope.mat_mut(op.dg),
        dbeta: scope.mat_mut(op.dbeta),
        dinitial: op.dinitial_state.map(|id| scope.mat_mut(id)),
    };
    let heads = op.shape.key_heads;
    (0..documents.list.len() * heads)
        .into_par_iter()
        .for_each(|task| {
            let (document, head) = (task / heads, task % heads);
            let place = documents.list[document];
            let (inputs, saved, gradients) = (&inputs, &saved, &gradients);
            work.with_worker(|memory| {
                Simd::vectorize(
                    isa(),
                    Task {
                        inputs,
                        saved,
                        gradients,
                        document,
                        place,
                        head,
                        memory,
                    },
                );
            });
        });
}

/// All chunks of one document and key head, last to first.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn backward_document<T: Real, S: Simd>(
    simd: S,
    inputs: &Inputs<T>,
    saved: &Saved<T>,
    gradients: &Gradients<T>,
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
    let dstates = take(&mut memory, group * state_len);
    for (i, dstate) in dstates.chunks_exact_mut(state_len).enumerate() {
        match saved.dlast {
            Some(d) => {
                let at = (document * value_heads + head * group + i) * state_len;
                dstate.copy_from_slice(&d[at..][..state_len]);
            }
            None => dstate.fill(T::ZERO),
        }
    }
    let chunks = place.rows.div_ceil(CHUNK);
    for chunk in (0..chunks).rev() {
        let (first, len) = (place.first + chunk * CHUNK, CHUNK.min(place.rows - chunk * CHUNK));
        let at = ChunkPlace {
            first,
            len,
            index: place.first_chunk + chunk,
            head,
        };
        backward_chunk(simd, inputs, saved, gradients, at, dstates, memory);
    }
    if let Some(dinitial) = &gradients.dinitial {
        let at = head * group * state_len;
        // SAFETY: this task alone writes its document's state gradient of its heads.
        let mut to = unsafe { dinitial.part(document, 1, at, group * state_len) };
        to.row(0).copy_from_slice(dstates);
    }
}

/// One chunk of one key head.
#[derive(Clone, Copy)]
struct ChunkPlace {
    first: usize,
    len: usize,
    index: usize,
    head: usize,
}

/// Gradients of one chunk for the value heads of a key head. `dstates` holds the gradients of the states after the
/// chunk and becomes those of the states before it.
///
/// Names as in [`ops::DeltaRule`]; with `D[t, s] = exp(G_t - G_s)`, `e_t = exp(G_t)`, `f_t = exp(G_L - G_t)`:
///
/// ```text
/// dU = Pᵀ dO + f K dS'        dR = (I + A)^-T dU        Z = -e dR          (dS': gradient of the next state)
/// dP = scale dO Uᵀ            dA = -dR Uᵀ (s < t)
/// dV = beta dR                dbeta = dR·V + k·(Z Sᵀ) + Σ_s dA D (k kᵀ)
/// dQ = scale e dO Sᵀ + (dP D) K
/// dK = (dP D)ᵀ Q + f U dS'ᵀ + beta Z Sᵀ + (N + Nᵀ) K,   N = beta dA D
/// dS = e_L dS' + Qᵀ (scale e dO) + Kᵀ (beta Z)
/// dg_t = e_L <dS', S> + Σ_{τ >= t} (q_τ·(scale e dO Sᵀ)_τ + beta k_τ·(Z Sᵀ)_τ) + Σ_{s < t} f_s k_s·(U dS'ᵀ)_s
///        + Σ_{τ >= t, s < t} E[τ, s],   E = dP D (q kᵀ) + N (k kᵀ)
/// ```
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn backward_chunk<T: Real, S: Simd>(
    simd: S,
    inputs: &Inputs<T>,
    saved: &Saved<T>,
    gradients: &Gradients<T>,
    place: ChunkPlace,
    dstates: &mut [T],
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
    let ChunkPlace {
        first,
        len,
        index,
        head,
    } = place;
    let mut memory = memory;
    let tail = take(&mut memory, SMALL_TAIL);
    let kt = take(&mut memory, kd * CHUNK);
    let kk = take(&mut memory, CHUNK * CHUNK);
    let qk = take(&mut memory, CHUNK * CHUNK);
    let decay = take(&mut memory, CHUNK * CHUNK);
    let a = take(&mut memory, CHUNK * CHUNK);
    let p = take(&mut memory, CHUNK * CHUNK);
    let dp = take(&mut memory, CHUNK * CHUNK);
    let da = take(&mut memory, CHUNK * CHUNK);
    let dr = &mut take(&mut memory, CHUNK * vd)[..len * vd];
    let dos = &mut take(&mut memory, CHUNK * vd)[..len * vd];
    let z = &mut take(&mut memory, CHUNK * vd)[..len * vd];
    let ut = take(&mut memory, CHUNK * vd);
    let from_q = &mut take(&mut memory, CHUNK * kd)[..len * kd];
    let from_k = &mut take(&mut memory, CHUNK * kd)[..len * kd];
    let from_u = &mut take(&mut memory, CHUNK * kd)[..len * kd];
    let st = take(&mut memory, state_len);
    let dst = take(&mut memory, state_len);
    let q = inputs.q.rows_at(first, len).columns_at(head * kd, kd);
    let k = inputs.k.rows_at(first, len).columns_at(head * kd, kd);
    products(simd, q, k, kt, kk, qk, tail);
    // SAFETY: this task alone writes the rows of its document in its heads' columns, here and below.
    let mut dq = unsafe { gradients.dq.part(first, len, head * kd, kd) };
    // SAFETY: as above.
    let mut dk = unsafe { gradients.dk.part(first, len, head * kd, kd) };
    for t in 0..len {
        dq.row(t).fill(T::ZERO);
        dk.row(t).fill(T::ZERO);
    }
    for i in 0..group {
        let j = head * group + i;
        let dstate = &mut dstates[i * state_len..][..state_len];
        let v = inputs.v.rows_at(first, len).columns_at(j * vd, vd);
        let dout = saved.dout.rows_at(first, len).columns_at(j * vd, vd);
        let u = saved.u.rows_at(first, len).columns_at(j * vd, vd);
        let state = saved
            .states
            .rows_at(index, 1)
            .columns_at(j * state_len, state_len)
            .row(0);
        let d = decays(inputs.g, first, len, j, decay);
        let mut beta = [T::ZERO; CHUNK];
        for (t, beta) in beta[..len].iter_mut().enumerate() {
            *beta = inputs.beta.row(first + t)[j];
        }
        for t in 0..len {
            for s in 0..=t {
                let at = t * CHUNK + s;
                a[at] = beta[t] * decay[at] * kk[at];
                p[at] = inputs.scale * decay[at] * qk[at];
            }
            p[t * CHUNK + t + 1..t * CHUNK + len].fill(T::ZERO);
            let factor = inputs.scale * d.from_start[t];
            dos[t * vd..][..vd]
                .iter_mut()
                .zip(dout.row(t))
                .for_each(|(y, &x)| *y = factor * x);
        }
        // dR, first as f K dS' + Pᵀ dO
        let to = MatMut::dense(dr, vd);
        gemm_small(
            simd,
            Factor::plain(k),
            Mat::dense(dstate, vd),
            to,
            Into::Set,
            tail,
        );
        for (t, row) in dr.chunks_exact_mut(vd).enumerate() {
            row.iter_mut().for_each(|x| *x *= d.to_end[t]);
        }
        let p_view = Factor::transposed(Mat::new(p, len, len, CHUNK));
        gemm_small(simd, p_view, dout, MatMut::dense(dr, vd), Into::Add, tail);
        solve_transposed(simd, a, dr, len, vd, tail);
        // dP D and dA D, lower triangles
        transpose(u, ut, CHUNK);
        let ut_view = Mat::new(ut, vd, len, CHUNK);
        gemm_small(
            simd,
            Factor::plain(dout),
            ut_view,
            MatMut::new(dp, len, len, CHUNK),
            Into::Set,
            tail,
        );
        let dr_view = Mat::dense(dr, vd);
        gemm_small(
            simd,
            Factor::plain(dr_view),
            ut_view,
            MatMut::new(da, len, len, CHUNK),
            Into::Set,
            tail,
        );
        for (t, row) in z.chunks_exact_mut(vd).enumerate() {
            for (y, &x) in row.iter_mut().zip(&dr[t * vd..]) {
                *y = -d.from_start[t] * x;
            }
        }
        // from_q = scale e dO Sᵀ, from_k = Z Sᵀ, from_u = U dS'ᵀ
        transpose(Mat::dense(state, vd), st, kd);
        transpose(Mat::dense(dstate, vd), dst, kd);
        let (st, dst) = (Mat::dense(st, kd), Mat::dense(dst, kd));
        gemm_small(
            simd,
            Factor::plain(Mat::dense(dos, vd)),
            st,
            MatMut::dense(from_q, kd),
            Into::Set,
            tail,
        );
        gemm_small(
            simd,
            Factor::plain(Mat::dense(z, vd)),
            st,
            MatMut::dense(from_k, kd),
            Into::Set,
            tail,
        );
        gemm_small(
            simd,
            Factor::plain(u),
            dst,
            MatMut::dense(from_u, kd),
            Into::Set,
            tail,
        );

        // Sums over pairs for dg, without cancellation: below[s] = Σ_{t' >= t} E[t', s].
        let mut below = [T::ZERO; CHUNK];
        let mut dg = [0.0f64; CHUNK];
        let mut from_end = [0.0f64; CHUNK];
        let mut after = (dot(dstate, state) * d.whole).f64();
        // SAFETY: as above.
        let mut dv = unsafe { gradients.dv.part(first, len, j * vd, vd) };
        // SAFETY: as above.
        let mut dbeta = unsafe { gradients.dbeta.part(first, len, j, 1) };
        for t in (0..len).rev() {
            let row = t * CHUNK..t * CHUNK + len;
            let (decay, kk, qk) = (&decay[row.clone()], &kk[row.clone()], &qk[row.clone()]);
            let (dp, da) = (&mut dp[row.clone()], &mut da[row]);
            let mut beta_terms = [T::ZERO; CHUNK];
            for s in 0..t {
                let with_decay = -da[s] * decay[s];
                beta_terms[s] = with_decay * kk[s];
                da[s] = beta[t] * with_decay;
                dp[s] = inputs.scale * dp[s] * decay[s];
                below[s] += dp[s] * qk[s] + da[s] * kk[s];
            }
            dp[t] = inputs.scale * dp[t] * decay[t];
            da[t] = T::ZERO;
            dp[t + 1..].fill(T::ZERO);
            da[t + 1..].fill(T::ZERO);
            let (q, k, dr) = (q.row(t), k.row(t), &dr[t * vd..][..vd]);
            let (from_q, from_k) = (&from_q[t * kd..][..kd], &from_k[t * kd..][..kd]);
            let from_u = &from_u[t * kd..][..kd];
            let k_from_k = dot(k, from_k);
            from_end[t] = (d.to_end[t] * dot(k, from_u)).f64();
            dbeta.row(t)[0] = T::of(dot(dr, v.row(t)).f64() + k_from_k.f64() + sum(&beta_terms[..t]).f64());
            after += dot(q, from_q).f64() + (beta[t] * k_from_k).f64();
            dg[t] = after + sum(&below[..t]).f64();
            dv.row(t).iter_mut().zip(dr).for_each(|(y, &x)| *y = beta[t] * x);
            z[t * vd..][..vd].iter_mut().for_each(|x| *x *= beta[t]);
            dq.row(t).iter_mut().zip(from_q).for_each(|(y, &x)| *y += x);
            for ((y, &z), &u) in dk.row(t).iter_mut().zip(from_k).zip(from_u) {
                *y += beta[t] * z + d.to_end[t] * u;
            }
        }
        let mut before = 0.0;
        for t in 0..len {
            // SAFETY: as above.
            unsafe { gradients.dg.part(first + t, 1, j, 1) }.row(0)[0] = T::of(dg[t] + before);
            before += from_end[t];
        }
        // N + Nᵀ
        for t in 0..len {
            for s in 0..t {
                da[s * CHUNK + t] = da[t * CHUNK + s];
            }
        }
        let square = |m| Mat::new(m, len, len, CHUNK);
        gemm_small(simd, Factor::plain(square(dp)), k, dq.reborrow(), Into::Add, tail);
        gemm_small(
            simd,
            Factor::transposed(square(dp)),
            q,
            dk.reborrow(),
            Into::Add,
            tail,
        );
        gemm_small(simd, Factor::plain(square(da)), k, dk.reborrow(), Into::Add, tail);
        dstate.iter_mut().for_each(|x| *x *= d.whole);
        let to = MatMut::dense(dstate, vd);
        gemm_small(
            simd,
            Factor::transposed(q),
            Mat::dense(dos, vd),
            to,
            Into::Add,
            tail,
        );
        let to = MatMut::dense(dstate, vd);
        gemm_small(
            simd,
            Factor::transposed(k),
            Mat::dense(z, vd),
            to,
            Into::Add,
            tail,
        );
    }
}
