// All chunk-local gradients of the value heads of one key head, for key and value heads of 64: dq, dk (summed over the
// heads, in head order), dv, dbeta, dG. Everything between the operands and the results stays on chip; what the second
// half of a head needs, and the next head's tiles, arrive while the first half is computed. Notation and layouts:
// delta_chunk.cu. Compile-time: KD, VD.
#include "delta.cuh"

struct HeadGates {
  float g, b;
};
// Gates of one head, on their way: threads 0 .. 63 hold a row each.
__device__ __forceinline__ HeadGates fetch_gates(const float* gc, const float* beta, const int4& c, int HV, int hv) {
  const int t = threadIdx.x, r = t < c.y ? t : c.y - 1;
  HeadGates x = {0.f, 0.f};
  if (t < TILE) {
    x.g = LOG2E * gc[(long long)(c.x + r) * HV + hv];
    x.b = t < c.y ? beta[(long long)(c.x + t) * HV + hv] : 0.f;
  }
  return x;
}
// Adds x . tile, row by row, to the sums of the two rows a thread holds.
__device__ __forceinline__ void dot_rows(float (&sum)[2], const Frag& x, const elem* tile, float sign) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int hh = 0; hh < 2; ++hh) {
      const float2 t = pair_of(tile, n, hh);
      sum[hh] = fmaf(sign * x.v[n][2 * hh], t.x, fmaf(sign * x.v[n][2 * hh + 1], t.y, sum[hh]));
    }
}
__device__ __forceinline__ void add_to(Frag& y, const Frag& x, float a, float b) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    y.v[n][0] = fmaf(a, x.v[n][0], y.v[n][0]);
    y.v[n][1] = fmaf(a, x.v[n][1], y.v[n][1]);
    y.v[n][2] = fmaf(b, x.v[n][2], y.v[n][2]);
    y.v[n][3] = fmaf(b, x.v[n][3], y.v[n][3]);
  }
}
__device__ __forceinline__ void scale_frag(Frag& x, float a, float b) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    x.v[n][0] *= a;
    x.v[n][1] *= a;
    x.v[n][2] *= b;
    x.v[n][3] *= b;
  }
}

// Grid (chunks, H).
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(elem) == 2 ? 2 : 1)
delta_local_backward(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ v, long long ldv,
                     const float* __restrict__ gc, const float* __restrict__ beta, const elem* __restrict__ T, const elem* __restrict__ w,
                     const elem* __restrict__ u, const elem* __restrict__ vn, const elem* __restrict__ hst, const elem* __restrict__ dh,
                     const elem* __restrict__ dO, const elem* __restrict__ dv, float scale, elem* __restrict__ dq, long long lddq,
                     elem* __restrict__ dk, long long lddk, elem* __restrict__ dvout, long long lddv, float* __restrict__ dbeta, float* __restrict__ dG) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* qs = first_tile(smem);
  elem* ks = qs + TILE_ELEMS;
  elem* os = ks + TILE_ELEMS;   // dO
  elem* ns = os + TILE_ELEMS;   // vn
  elem* hs = ns + TILE_ELEMS;   // h
  elem* es = hs + TILE_ELEMS;   // dh
  elem* fs = es + TILE_ELEMS;   // dv (of Vn)
  elem* ws = fs + TILE_ELEMS;
  elem* us = ws + TILE_ELEMS;
  elem* Ts = us + TILE_ELEMS;
  elem* vs = Ts + TILE_ELEMS;   // v, then the gradient of v, then F
  elem* ps = vs + TILE_ELEMS;   // gradient of the scores
  elem* ds = ps + TILE_ELEMS;   // dw
  float* G = reinterpret_cast<float*>(ds + TILE_ELEMS);
  float* B = G + TILE;
  float* rb = B + TILE;
  float* rg = rb + TILE;
  float* cs = rg + TILE;        // [4][64] column sums, one row a warp
  float* red = cs + 4 * TILE;   // [4]
  const int4 c = m.chunks[blockIdx.x];
  const int h = blockIdx.y, group = m.HV / m.H, rows = c.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const long long ldu = (long long)m.HV * VD;
  auto row_of = [&](int hv) { return (long long)c.x * ldu + (long long)hv * VD; };
  auto fetch_first = [&](int hv) {
    const long long state = ((long long)blockIdx.x * m.HV + hv) * KD * VD;
    load_tile_async(os, dO + row_of(hv), ldu, rows);
    load_tile_async(ns, vn + row_of(hv), ldu, rows);
    load_tile_async(hs, hst + state, VD, TILE);
    load_tile_async(es, dh + state, VD, TILE);
  };
  load_tile_async(qs, q + (long long)c.x * ldq + (long long)h * KD, ldq, rows);
  load_tile_async(ks, k + (long long)c.x * ldk + (long long)h * KD, ldk, rows);
  fetch_first(h * group);
  load_tile_async(fs, dv + row_of(h * group), ldu, rows);
  async_commit();
  HeadGates gates = fetch_gates(gc, beta, c, m.HV, h * group);
  Frag Q, K;
  Q.zero();
  K.zero();
  for (int i = 0; i < group; ++i) {
    const int hv = h * group + i;
    load_tile_async(ws, w + (long long)c.x * m.HV * KD + (long long)hv * KD, (long long)m.HV * KD, rows);
    load_tile_async(us, u + row_of(hv), ldu, rows);
    load_tile_async(Ts, T + ((long long)blockIdx.x * m.HV + hv) * TILE * TILE, TILE, TILE);
    async_commit();
    if (threadIdx.x < TILE) {
      G[threadIdx.x] = gates.g;
      B[threadIdx.x] = gates.b;
    }
    if (i + 1 < group) gates = fetch_gates(gc, beta, c, m.HV, hv + 1);
    async_wait<1>();
    tiles_sync();  // the first half's tiles are there; nobody reads F of the head before
    load_tile_async(vs, v + (long long)c.x * ldv + (long long)hv * VD, ldv, rows);
    async_commit();
    const float gl = G[TILE - 1], g0 = G[acc_row(0)], g1 = G[acc_row(2)];
    float dg[2] = {0.f, 0.f}, db[2] = {0.f, 0.f};
    Frag X, Y;
    // Scores: dP = dO VnT, masked and scaled. Queries: dO hT, decayed, plus dP K.
    X.zero();
    Y.zero();
    mm_start<false, true>(X, os, ns);
    mm_start<false, true>(Y, os, hs);
    mm_wait<1>(X);
    mask_scores(X, G, scale);
    frag_to_tile(ps, X);
    mm_wait<0>(Y);
    scale_frag(Y, scale * exp2_fast(g0), scale * exp2_fast(g1));
    mm_of<false>(Y, X, ks, ds);
    dot_rows(dg, Y, qs, 1.f);
    add_to(Q, Y, 1.f, 1.f);
    // Keys through the state: Vn dhT, decayed. Its dot with k, and <h, dh>, belong to the chunk's last decay. dw = -dVn hT.
    X.zero();
    Y.zero();
    mm_start<false, true>(Y, ns, es);
    mm_start<false, true>(X, fs, hs);
    float last = 0.f;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int hh = 0; hh < 2; ++hh) {
        const float2 s = pair_of(hs, n, hh), t = pair_of(es, n, hh);
        last = fmaf(s.x, t.x, fmaf(s.y, t.y, last));
      }
    last *= exp2_fast(gl);
    mm_wait<1>(Y);
    scale_frag(Y, exp2_fast(gl - g0), exp2_fast(gl - g1));
    {
      float s[2] = {0.f, 0.f};
      dot_rows(s, Y, ks, 1.f);
      last += s[0] + s[1];
    }
    mm_wait<0>(X);
    scale_frag(X, -1.f, -1.f);
    frag_to_tile(ds, X);
    async_wait<0>();
    tiles_sync();  // dP, dw and the second half's tiles are there; dO, vn, h, dh are free
    if (i + 1 < group) fetch_first(hv + 1);
    async_commit();
    // Keys: plus dPT q. Xk = TT dw and Xv = TT dVn; dA = -(Xk wT + Xv uT).
    X.zero();
    mm_start<true, false>(Y, ps, qs);
    mm_start<true, false>(X, Ts, ds);
    mm_wait<1>(Y);
    dot_rows(dg, Y, ks, -1.f);
    add_to(K, Y, 1.f, 1.f);
    mm_wait<0>(X);
    {
      const float e0 = exp2_fast(g0), e1 = exp2_fast(g1), b0 = B[acc_row(0)], b1 = B[acc_row(2)];
      float xk[2] = {0.f, 0.f};
      dot_rows(xk, X, ks, 1.f);
      db[0] = e0 * xk[0];
      db[1] = e1 * xk[1];
      dg[0] = fmaf(b0, db[0], dg[0]);
      dg[1] = fmaf(b1, db[1], dg[1]);
      add_to(K, X, b0 * e0, b1 * e1);
    }
    Frag A;
    A.zero();
    float du[2] = {0.f, 0.f};  // X . (w, u): see gradient_of_beta
    dot_rows(du, X, ws, 1.f);
    mm_of<true>(A, X, ws, ds);
    X.zero();
    mm<true, false>(X, Ts, fs);
    dot_rows(db, X, vs, 1.f);
    dot_rows(du, X, us, 1.f);
    mm_of<true>(A, X, us, ds);
    scale_frag(X, B[acc_row(0)], B[acc_row(2)]);
    frag_to_tile(vs, X);  // every thread where it alone has read v
    store_own_rows(dvout + (long long)c.x * lddv + (long long)hv * VD, lddv, vs, rows);
    // F = -beta_i exp(G_i - G_j) dA, strictly lower; F . k kT gives decays and beta.
    Y.zero();
    mm<false, true>(Y, ks, ks);
    float rs[2] = {0.f, 0.f};
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int ii = acc_row(r), jj = acc_col(n, r);
        const float s = ii > jj ? -A.v[n][r] * exp2_fast((r >> 1 ? g1 : g0) - G[jj]) : 0.f;
        rs[r >> 1] = fmaf(s, Y.v[n][r], rs[r >> 1]);
        A.v[n][r] = B[ii] * s;
        Y.v[n][r] *= A.v[n][r];
      }
    frag_to_tile(vs, A);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float s = Y.v[n][r] + Y.v[n][r + 2];
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
        if (lane < 4) cs[warp * TILE + n * 8 + lane * 2 + r] = s;
      }
#pragma unroll
    for (int hh = 0; hh < 2; ++hh) {
      const int ii = acc_row(2 * hh);
      const float s = row_sum4(db[hh] + rs[hh]), t = row_sum4(fmaf(B[ii], rs[hh], dg[hh])), z = row_sum4(du[hh]);
      if ((lane & 3) == 0) {
        rb[ii] = gradient_of_beta(B[ii], z, s);
        rg[ii] = t;
      }
    }
    last = warp_sum(last);
    if (lane == 0) red[warp] = last;
    mm_of<false>(K, A, ks, ds);
    tiles_sync();  // F and the sums are there; T, w, u, dv are free
    if (i + 1 < group) load_tile_async(fs, dv + row_of(hv + 1), ldu, rows);
    async_commit();
    mm<true, false>(K, vs, ks);
    if (threadIdx.x < rows) {
      const int t = threadIdx.x;
      const long long e = (long long)(c.x + t) * m.HV + hv;
      dbeta[e] = rb[t];
      dG[e] = rg[t] - ((cs[t] + cs[TILE + t]) + (cs[2 * TILE + t] + cs[3 * TILE + t])) + (t == rows - 1 ? (red[0] + red[1]) + (red[2] + red[3]) : 0.f);
    }
  }
  frag_to_tile(os, Q);
  store_own_rows(dq + (long long)c.x * lddq + (long long)h * KD, lddq, os, rows);
  frag_to_tile(ns, K);
  store_own_rows(dk + (long long)c.x * lddk + (long long)h * KD, lddk, ns, rows);
}
