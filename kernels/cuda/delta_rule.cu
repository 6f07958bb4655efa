// The parts of the chunked gated delta rule that serve key heads of any size: separate kernels for what the fused ones
// (delta_fused.cu, delta_local.cu) do where a chunk's tiles fit together. Notation and layouts: delta_chunk.cu.
// Compile-time: KD, VD.
#include "delta.cuh"

// dst = src with each row scaled by s[row], as elem.
__device__ __forceinline__ void scale_rows(elem* dst, const elem* src, const float* s) {
  for (int i = threadIdx.x; i < TILE * 32; i += THREADS) {
    int r = i >> 5, c = (i & 31) * 2;
    float f = s[r];
    const float2 x = load2(src + tile_at(r, c));
    store2(dst + tile_at(r, c), x.x * f, x.y * f);
  }
}

// Sums dq, dk [rows, HV, KD] fp32 over the value heads of a key head, into columns of elem matrices.
extern "C" __global__ void __launch_bounds__(256)
sum_group(const float* __restrict__ part, elem* __restrict__ out, long long ld, long long n, int H, int HV) {
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  const long long row = i / (H * KD);
  const int c = (int)(i - row * (H * KD)), h = c / KD, grp = HV / H;
  const float* p = part + (row * HV + (long long)h * grp) * KD + c % KD;
  float s = 0.f;
  for (int r = 0; r < grp; ++r) s += p[(long long)r * KD];
  out[row * ld + c] = from_f32(s);
}

// The recurrence over chunks: Vn and the states. Grid (VT, HV, documents).
extern "C" __global__ void __launch_bounds__(THREADS)
delta_state(Meta m, const elem* __restrict__ k, long long ldk, const elem* __restrict__ w, const elem* __restrict__ u, const float* __restrict__ gc,
            const float* __restrict__ state0, elem* __restrict__ hst, elem* __restrict__ vn, float* __restrict__ stateN) {
  if ((int)blockIdx.z >= m.counts[0]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* Ss = first_tile(smem);
  elem* Ws = Ss + KT * TILE_ELEMS;
  elem* Ks = Ws + KT * TILE_ELEMS;
  elem* Vs = Ks + KT * TILE_ELEMS;
  float* G = reinterpret_cast<float*>(Vs + TILE_ELEMS);
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), v0 = blockIdx.x * TILE;
  const int2 d = m.docs[blockIdx.z];
  const long long ldw = (long long)m.HV * KD, ldu = (long long)m.HV * VD;
  const long long sbase = ((long long)blockIdx.z * m.HV + hv) * KD * VD + v0;
  Frag S[KT];
#pragma unroll
  for (int t = 0; t < KT; ++t)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) S[t].v[n][r] = state0 ? state0[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] : 0.f;
  for (int ci = 0; ci < d.y; ++ci) {
    const int chunk = d.x + ci;
    const int4 c = m.chunks[chunk];
    const int rows = c.y;
    load_gates(G, nullptr, gc, nullptr, c.x, rows, m.HV, hv);
#pragma unroll
    for (int t = 0; t < KT; ++t) {
      frag_to_tile(Ss + t * TILE_ELEMS, S[t]);
      load_tile(Ws + t * TILE_ELEMS, w + (long long)c.x * ldw + (long long)hv * KD + t * TILE, ldw, rows);
      load_tile(Ks + t * TILE_ELEMS, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, rows);
    }
    load_tile(Vs, u + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, rows);
    tiles_sync();
    if (hst)
#pragma unroll
      for (int t = 0; t < KT; ++t) store_tile(hst + (((long long)chunk * m.HV + hv) * KD + t * TILE) * VD + v0, VD, Ss + t * TILE_ELEMS, TILE);
    Frag x, y;
    x.zero();
#pragma unroll
    for (int t = 0; t < KT; ++t) mm<false, false>(x, Ws + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
    tile_to_frag(y, Vs);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) x.v[n][r] = y.v[n][r] - x.v[n][r];
    tiles_sync();
    frag_to_tile(Vs, x);
    tiles_sync();
    store_tile(vn + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Vs, rows);
    const float gl = G[TILE - 1];
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) x.v[n][r] *= exp2_fast(gl - G[acc_row(r)]);
    tiles_sync();
    frag_to_tile(Vs, x);
    tiles_sync();
    const float dec = exp2_fast(gl);
#pragma unroll
    for (int t = 0; t < KT; ++t) {
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) S[t].v[n][r] *= dec;
      mm<true, false>(S[t], Ks + t * TILE_ELEMS, Vs);
    }
    tiles_sync();
  }
  if (stateN)
#pragma unroll
    for (int t = 0; t < KT; ++t)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) stateN[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] = S[t].v[n][r];
}

// Output. Grid (chunks, VT, HV).
extern "C" __global__ void __launch_bounds__(THREADS)
delta_output(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ vn,
             const elem* __restrict__ hst, const float* __restrict__ gc, float scale, elem* __restrict__ o) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* qs = first_tile(smem);
  elem* ks = qs + TILE_ELEMS;
  elem* hs = ks + TILE_ELEMS;
  float* G = reinterpret_cast<float*>(hs + TILE_ELEMS);
  const int4 c = m.chunks[blockIdx.x];
  const int hv = blockIdx.z, h = hv / (m.HV / m.H), v0 = blockIdx.y * TILE, rows = c.y;
  const long long ldu = (long long)m.HV * VD;
  load_gates(G, nullptr, gc, nullptr, c.x, rows, m.HV, hv);
  Frag p, x;
  p.zero();
  x.zero();
  for (int t = 0; t < KT; ++t) {
    tiles_sync();
    load_tile(qs, q + (long long)c.x * ldq + (long long)h * KD + t * TILE, ldq, rows);
    load_tile(ks, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, rows);
    load_tile(hs, hst + (((long long)blockIdx.x * m.HV + hv) * KD + t * TILE) * VD + v0, VD, TILE);
    tiles_sync();
    mm<false, true>(p, qs, ks);
    mm<false, false>(x, qs, hs);
  }
  mask_scores(p, G, scale);
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r) x.v[n][r] *= scale * exp2_fast(G[acc_row(r)]);
  tiles_sync();
  frag_to_tile(qs, p);
  load_tile(ks, vn + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, rows);
  tiles_sync();
  mm<false, false>(x, qs, ks);
  frag_to_tile(hs, x);
  tiles_sync();
  store_tile(o + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, hs, rows);
}

// Backward 1: the part of dVn that comes from the chunk's own outputs. Grid (chunks, VT, HV).
extern "C" __global__ void __launch_bounds__(THREADS)
delta_dv_local(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ dO,
               const float* __restrict__ gc, float scale, elem* __restrict__ dv) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* qs = first_tile(smem);
  elem* ks = qs + TILE_ELEMS;
  float* G = reinterpret_cast<float*>(ks + TILE_ELEMS);
  const int4 c = m.chunks[blockIdx.x];
  const int hv = blockIdx.z, h = hv / (m.HV / m.H), v0 = blockIdx.y * TILE, rows = c.y;
  const long long ldu = (long long)m.HV * VD;
  load_gates(G, nullptr, gc, nullptr, c.x, rows, m.HV, hv);
  Frag p, x;
  p.zero();
  for (int t = 0; t < KT; ++t) {
    tiles_sync();
    load_tile(qs, q + (long long)c.x * ldq + (long long)h * KD + t * TILE, ldq, rows);
    load_tile(ks, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, rows);
    tiles_sync();
    mm<false, true>(p, qs, ks);
  }
  mask_scores(p, G, scale);
  tiles_sync();
  frag_to_tile(qs, p);
  load_tile(ks, dO + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, rows);
  tiles_sync();
  x.zero();
  mm<true, false>(x, qs, ks);
  tiles_sync();
  frag_to_tile(ks, x);
  tiles_sync();
  store_tile(dv + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, ks, rows);
}

// Backward 2: the reverse recurrence; dv goes from its local part to the whole gradient of Vn (in place), dh gets
// the gradient of the state after each chunk. Grid (VT, HV, documents).
extern "C" __global__ void __launch_bounds__(THREADS)
delta_state_backward(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ w,
                     const elem* __restrict__ dO, const float* __restrict__ gc, const float* __restrict__ dstateN, float scale,
                     elem* __restrict__ dv, elem* __restrict__ dh, float* __restrict__ dstate0) {
  if ((int)blockIdx.z >= m.counts[0]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* Ss = first_tile(smem);
  elem* Ks = Ss + KT * TILE_ELEMS;
  elem* Ds = Ks + KT * TILE_ELEMS;
  elem* Xs = Ds + TILE_ELEMS;
  float* G = reinterpret_cast<float*>(Xs + TILE_ELEMS);
  float* E = G + TILE;
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), v0 = blockIdx.x * TILE;
  const int2 d = m.docs[blockIdx.z];
  const long long ldw = (long long)m.HV * KD, ldu = (long long)m.HV * VD;
  const long long sbase = ((long long)blockIdx.z * m.HV + hv) * KD * VD + v0;
  Frag S[KT];
#pragma unroll
  for (int t = 0; t < KT; ++t)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) S[t].v[n][r] = dstateN ? dstateN[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] : 0.f;
  for (int ci = d.y - 1; ci >= 0; --ci) {
    const int chunk = d.x + ci;
    const int4 c = m.chunks[chunk];
    const int rows = c.y;
    load_gates(G, nullptr, gc, nullptr, c.x, rows, m.HV, hv);
#pragma unroll
    for (int t = 0; t < KT; ++t) {
      frag_to_tile(Ss + t * TILE_ELEMS, S[t]);
      load_tile(Ks + t * TILE_ELEMS, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, rows);
    }
    load_tile(Xs, dv + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, rows);
    load_tile(Ds, dO + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, rows);
    tiles_sync();
    if (threadIdx.x < TILE) E[threadIdx.x] = scale * exp2_fast(G[threadIdx.x]);
#pragma unroll
    for (int t = 0; t < KT; ++t) store_tile(dh + (((long long)chunk * m.HV + hv) * KD + t * TILE) * VD + v0, VD, Ss + t * TILE_ELEMS, TILE);
    Frag x, y;
    x.zero();
#pragma unroll
    for (int t = 0; t < KT; ++t) mm<false, false>(x, Ks + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
    tile_to_frag(y, Xs);
    const float gl = G[TILE - 1];
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) x.v[n][r] = acc_row(r) < rows ? fmaf(exp2_fast(gl - G[acc_row(r)]), x.v[n][r], y.v[n][r]) : 0.f;
    tiles_sync();
    frag_to_tile(Xs, x);
    scale_rows(Ds, Ds, E);
    tiles_sync();
    store_tile(dv + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Xs, rows);
    tiles_sync();
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) x.v[n][r] = -x.v[n][r];
    frag_to_tile(Xs, x);
#pragma unroll
    for (int t = 0; t < KT; ++t) load_tile(Ks + t * TILE_ELEMS, q + (long long)c.x * ldq + (long long)h * KD + t * TILE, ldq, rows);
#pragma unroll
    for (int t = 0; t < KT; ++t) load_tile(Ss + t * TILE_ELEMS, w + (long long)c.x * ldw + (long long)hv * KD + t * TILE, ldw, rows);
    tiles_sync();
    const float dec = exp2_fast(gl);
#pragma unroll
    for (int t = 0; t < KT; ++t) {
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) S[t].v[n][r] *= dec;
      mm<true, false>(S[t], Ks + t * TILE_ELEMS, Ds);
      mm<true, false>(S[t], Ss + t * TILE_ELEMS, Xs);
    }
    tiles_sync();
  }
  if (dstate0)
#pragma unroll
    for (int t = 0; t < KT; ++t)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) dstate0[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] = S[t].v[n][r];
}

// Backward 3: dq, dk (without the WY part), dw, and dG of this 64-wide slice of the key dimension.
// Grid (chunks, KT, HV). dq, dk [rows, HV, KD] fp32, dw [rows, HV, KD] elem, dG [KT, rows, HV] fp32.
extern "C" __global__ void __launch_bounds__(THREADS)
delta_dqkw(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ vn,
           const elem* __restrict__ hst, const elem* __restrict__ dh, const elem* __restrict__ dO, const elem* __restrict__ dv,
           const float* __restrict__ gc, float scale, long long total_rows, float* __restrict__ dq, float* __restrict__ dk, elem* __restrict__ dw,
           float* __restrict__ dG) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* t0 = first_tile(smem);
  elem* t1 = t0 + TILE_ELEMS;
  elem* t2 = t1 + TILE_ELEMS;
  elem* t3 = t2 + TILE_ELEMS;
  elem* t4 = t3 + TILE_ELEMS;
  float* G = reinterpret_cast<float*>(t4 + TILE_ELEMS);
  float* red = G + TILE;      // [64] row results
  float* red2 = red + TILE;   // [128] block reduction
  const int4 c = m.chunks[blockIdx.x];
  const int hv = blockIdx.z, h = hv / (m.HV / m.H), k0 = blockIdx.y * TILE, rows = c.y;
  const long long ldu = (long long)m.HV * VD, ldw = (long long)m.HV * KD;
  load_gates(G, nullptr, gc, nullptr, c.x, rows, m.HV, hv);
  Frag p, fq, fk, fw;
  p.zero();
  fq.zero();
  fk.zero();
  fw.zero();
  float hdh = 0.f;
  for (int t = 0; t < VT; ++t) {
    tiles_sync();
    load_tile(t0, dO + (long long)c.x * ldu + (long long)hv * VD + t * TILE, ldu, rows);
    load_tile(t1, vn + (long long)c.x * ldu + (long long)hv * VD + t * TILE, ldu, rows);
    load_tile(t2, hst + (((long long)blockIdx.x * m.HV + hv) * KD + k0) * VD + t * TILE, VD, TILE);
    load_tile(t3, dh + (((long long)blockIdx.x * m.HV + hv) * KD + k0) * VD + t * TILE, VD, TILE);
    load_tile(t4, dv + (long long)c.x * ldu + (long long)hv * VD + t * TILE, ldu, rows);
    tiles_sync();
    mm<false, true>(p, t0, t1);
    mm<false, true>(fq, t0, t2);
    mm<false, true>(fk, t1, t3);
    mm<false, true>(fw, t4, t2);
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) hdh = fmaf(to_f32(t2[tile_at(i >> 6, i & 63)]), to_f32(t3[tile_at(i >> 6, i & 63)]), hdh);
  }
  mask_scores(p, G, scale);
  const float gl = G[TILE - 1];
  tiles_sync();
  frag_to_tile(t2, p);
  load_tile(t0, q + (long long)c.x * ldq + (long long)h * KD + k0, ldq, rows);
  load_tile(t1, k + (long long)c.x * ldk + (long long)h * KD + k0, ldk, rows);
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      int i = acc_row(r);
      fq.v[n][r] *= scale * exp2_fast(G[i]);
      fk.v[n][r] *= exp2_fast(gl - G[i]);
      fw.v[n][r] = -fw.v[n][r];
    }
  frag_to_tile(t3, fw);
  tiles_sync();
  store_tile(dw + (long long)c.x * ldw + (long long)hv * KD + k0, ldw, t3, rows);
  // k_j . dk_j of the state part, summed over the chunk, goes to the last row's dG together with exp(G_C) <S, dS'>.
  float kdk[2] = {0.f, 0.f};
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r) kdk[r >> 1] = fmaf(fk.v[n][r], to_f32(t1[tile_at(acc_row(r), acc_col(n, r))]), kdk[r >> 1]);
  red2[threadIdx.x] = fmaf(hdh, exp2_fast(gl), kdk[0] + kdk[1]);
  mm<false, false>(fq, t2, t1);
  mm<true, false>(fk, t2, t0);
  float dg[2] = {0.f, 0.f};
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      int i = acc_row(r), j = acc_col(n, r);
      dg[r >> 1] = fmaf(fq.v[n][r], to_f32(t0[tile_at(i, j)]), dg[r >> 1]);
      dg[r >> 1] = fmaf(-fk.v[n][r], to_f32(t1[tile_at(i, j)]), dg[r >> 1]);
      if (i < rows) {
        long long at = (long long)(c.x + i) * ldw + (long long)hv * KD + k0 + j;
        dq[at] = fq.v[n][r];
        dk[at] = fk.v[n][r];
      }
    }
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    float x = row_sum4(dg[s]);
    if ((threadIdx.x & 3) == 0) red[acc_row(2 * s)] = x;
  }
  tiles_sync();
  if (threadIdx.x < 32) {
    float x = red2[threadIdx.x] + red2[threadIdx.x + 32] + red2[threadIdx.x + 64] + red2[threadIdx.x + 96];
    x = warp_sum(x);
    if (threadIdx.x == 0) red2[0] = x;
  }
  tiles_sync();
  if (threadIdx.x < rows) dG[((long long)blockIdx.y * total_rows + c.x + threadIdx.x) * m.HV + hv] = red[threadIdx.x] + (threadIdx.x == rows - 1 ? red2[0] : 0.f);
}

// Backward 4: through T. Adds the WY part to dk, gives the gradient of v (columns of a matrix with row
// stride lddv) and dbeta, and adds to dG[0]. Grid (chunks, HV).
extern "C" __global__ void __launch_bounds__(THREADS)
delta_wy_backward(Meta m, const elem* __restrict__ k, long long ldk, const elem* __restrict__ v, long long ldv, const float* __restrict__ gc,
                  const float* __restrict__ beta, const elem* __restrict__ Tin, const elem* __restrict__ w, const elem* __restrict__ u,
                  const elem* __restrict__ dw, const elem* __restrict__ dv, float* __restrict__ dk, elem* __restrict__ dvout, long long lddv,
                  float* __restrict__ dbeta, float* __restrict__ dG) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* Ts = first_tile(smem);
  elem* x0 = Ts + TILE_ELEMS;
  elem* x1 = x0 + TILE_ELEMS;
  elem* x2 = x1 + TILE_ELEMS;
  float* G = reinterpret_cast<float*>(x2 + TILE_ELEMS);
  float* B = G + TILE;
  float* rb = B + TILE;   // dbeta
  float* rg = rb + TILE;  // dG
  float* Ff = rg + TILE;  // [64][65]
  const int4 c = m.chunks[blockIdx.x];
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), rows = c.y;
  const long long ldu = (long long)m.HV * VD, ldw = (long long)m.HV * KD;
  load_gates(G, B, gc, beta, c.x, rows, m.HV, hv);
  load_tile(Ts, Tin + ((long long)blockIdx.x * m.HV + hv) * TILE * TILE, TILE, TILE);
  float db[2] = {0.f, 0.f}, dg[2] = {0.f, 0.f}, du[2] = {0.f, 0.f};
  Frag dA, X;
  dA.zero();
  for (int t = 0; t < VT; ++t) {
    tiles_sync();
    load_tile(x0, dv + (long long)c.x * ldu + (long long)hv * VD + t * TILE, ldu, rows);
    load_tile(x1, u + (long long)c.x * ldu + (long long)hv * VD + t * TILE, ldu, rows);
    load_tile(x2, v + (long long)c.x * ldv + (long long)hv * VD + t * TILE, ldv, rows);
    tiles_sync();
    X.zero();
    mm<true, false>(X, Ts, x0);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int e = tile_at(acc_row(r), acc_col(n, r));
        db[r >> 1] = fmaf(X.v[n][r], to_f32(x2[e]), db[r >> 1]);
        du[r >> 1] = fmaf(X.v[n][r], to_f32(x1[e]), du[r >> 1]);
      }
    tiles_sync();
    frag_to_tile(x0, X);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) X.v[n][r] *= B[acc_row(r)];
    frag_to_tile(x2, X);
    tiles_sync();
    mm<false, true>(dA, x0, x1);
    store_tile(dvout + (long long)c.x * lddv + (long long)hv * VD + t * TILE, lddv, x2, rows);
  }
  Frag kk;
  kk.zero();
  for (int t = 0; t < KT; ++t) {
    tiles_sync();
    load_tile(x0, dw + (long long)c.x * ldw + (long long)hv * KD + t * TILE, ldw, rows);
    load_tile(x1, w + (long long)c.x * ldw + (long long)hv * KD + t * TILE, ldw, rows);
    load_tile(x2, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, rows);
    tiles_sync();
    X.zero();
    mm<true, false>(X, Ts, x0);
    mm<false, true>(kk, x2, x2);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        int i = acc_row(r), j = acc_col(n, r);
        float e = exp2_fast(G[i]), xk = X.v[n][r] * to_f32(x2[tile_at(i, j)]) * e;
        db[r >> 1] += xk;
        du[r >> 1] = fmaf(X.v[n][r], to_f32(x1[tile_at(i, j)]), du[r >> 1]);
        dg[r >> 1] = fmaf(B[i], xk, dg[r >> 1]);
        if (i < rows) dk[(long long)(c.x + i) * ldw + (long long)hv * KD + t * TILE + j] += B[i] * e * X.v[n][r];
      }
    tiles_sync();
    frag_to_tile(x0, X);
    tiles_sync();
    mm<false, true>(dA, x0, x1);
  }
  // F = -beta_i exp(G_i - G_j) dA, strictly lower.
  float rs[2] = {0.f, 0.f};
  tiles_sync();
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      int i = acc_row(r), j = acc_col(n, r);
      float e = i > j ? -dA.v[n][r] * exp2_fast(G[i] - G[j]) : 0.f;
      rs[r >> 1] = fmaf(e, kk.v[n][r], rs[r >> 1]);
      dA.v[n][r] = B[i] * e;
      Ff[i * 65 + j] = B[i] * e * kk.v[n][r];
    }
  frag_to_tile(x0, dA);
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    int i = acc_row(2 * s);
    float b = row_sum4(db[s] + rs[s]), g = row_sum4(fmaf(B[i], rs[s], dg[s])), z = row_sum4(du[s]);
    if ((threadIdx.x & 3) == 0) { rb[i] = gradient_of_beta(B[i], z, b); rg[i] = g; }
  }
  tiles_sync();
  if (threadIdx.x < rows) {
    float s = 0.f;
    for (int i = 0; i < TILE; ++i) s += Ff[i * 65 + threadIdx.x];
    long long at = (long long)(c.x + threadIdx.x) * m.HV + hv;
    dbeta[at] = rb[threadIdx.x];
    dG[at] += rg[threadIdx.x] - s;
  }
  for (int t = 0; t < KT; ++t) {
    tiles_sync();
    load_tile(x2, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, rows);
    tiles_sync();
    X.zero();
    mm<false, false>(X, x0, x2);
    mm<true, false>(X, x0, x2);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (acc_row(r) < rows) dk[(long long)(c.x + acc_row(r)) * ldw + (long long)hv * KD + t * TILE + acc_col(n, r)] += X.v[n][r];
  }
}
