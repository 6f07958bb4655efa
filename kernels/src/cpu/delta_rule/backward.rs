//! Backward pass of the chunked gated delta rule.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::documents::{Document, Documents};
use super::super::gemm::{Factor, Into, gemm_small};
use super::super::matrix::{Mat, MatMut};
use super::super::real::{Real, dot, isa, sum};
use super::super::store::Scope;
use super::super::work::{Work, take};
use super::forward::{Outputs, forward};
use super::solve::solve_transposed;
use super::*;

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
            let row = t * CHUNK..(t + 1) * CHUNK;
            let decay = &decay[row.clone()];
            decayed_row(&mut a[row.clone()], t, beta[t], decay, &kk[row.clone()]);
            decayed_row(&mut p[row.clone()], t, inputs.scale, decay, &qk[row]);
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
            let row = t * CHUNK..(t + 1) * CHUNK;
            let (decay, kk, qk) = (&decay[row.clone()], &kk[row.clone()], &qk[row.clone()]);
            let (dp, da) = (&mut dp[row.clone()], &mut da[row]);
            let mut beta_terms = [T::ZERO; CHUNK];
            // Whole pieces: what the last one has from t on is cleared, or not read again.
            let rows = pieces_mut(da, t).iter_mut().zip(pieces_mut(dp, t));
            let sums = pieces_mut(&mut beta_terms, t)
                .iter_mut()
                .zip(pieces_mut(&mut below, t));
            let factors = pieces(decay, t).iter().zip(pieces(kk, t)).zip(pieces(qk, t));
            for (((da, dp), (beta_terms, below)), ((decay, kk), qk)) in rows.zip(sums).zip(factors) {
                for s in 0..PIECE {
                    let with_decay = -da[s] * decay[s];
                    beta_terms[s] = with_decay * kk[s];
                    da[s] = beta[t] * with_decay;
                    dp[s] = inputs.scale * dp[s] * decay[s];
                    below[s] += dp[s] * qk[s] + da[s] * kk[s];
                }
            }
            dp[t + 1..len].fill(T::ZERO);
            da[t..len].fill(T::ZERO);
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
