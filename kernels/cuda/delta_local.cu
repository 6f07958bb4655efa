// All chunk-local gradients of the value heads of one key head, for key and value heads of 64: dq, dk (summed over the
// heads, in head order), dv, dbeta, dG. Everything between the operands and the results stays on chip; what the second
// half of a head needs, and the next head's tiles, arrive while the first half is computed. Notation and layouts:
// delta_chunk.cu. Compile-time: KD, VD.
#define WARPS_N 2
#define MM_UNROLL 2
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

// Grid (chunks, H).
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(elem) == 2 ? 2 : 1)
delta_local_backward(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ v, long long ldv,
                     const float* __restrict__ gc, const float* __restrict__ beta, const elem* __restrict__ T, const elem* __restrict__ w,
                     const elem* __restrict__ u, const elem* __restrict__ vn, const elem* __restrict__ hst, const elem* __restrict__ dh,
                     const elem* __restrict__ dO, const elem* __restrict__ dv, float scale, elem* __restrict__ dq, long long lddq,
                     elem* __restrict__ dk, long long lddk, elem* __restrict__ dvout, long long lddv, float* __restrict__ dbeta, float* __restrict__ dG) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  float* G = reinterpret_cast<float*>(smem);
  float* B = G + TILE;
  float* rb = B + TILE;                // [WARPS_N][64] sums over the columns of a warp
  float* rg = rb + WARPS_N * TILE;
  float* cs = rg + WARPS_N * TILE;     // [4][64] column sums, one row a row of warps
  float* red = cs + 4 * TILE;          // [THREADS]
  elem* qs = reinterpret_cast<elem*>(red + THREADS);
  elem* ks = qs + TILE_ELEMS;
  elem* os = ks + TILE_ELEMS;   // dO
  elem* ns = os + TILE_ELEMS;   // vn
  elem* hs = ns + TILE_ELEMS;   // h
  elem* es = hs + TILE_ELEMS;   // dh
  elem* fs = es + TILE_ELEMS;   // dv (of Vn)
  elem* ws = fs + TILE_ELEMS;
  elem* us = ws + TILE_ELEMS;
  elem* Ts = us + TILE_ELEMS;
  elem* vs = Ts + TILE_ELEMS;
  elem* p = vs + TILE_ELEMS;    // P gradient, dw, X, F
  const int4 c = m.chunks[blockIdx.x];
  const int h = blockIdx.y, group = m.HV / m.H, rows = c.y, lane = threadIdx.x & 31, warp = row_warp(), side = threadIdx.x >> 7;
  const long long ldu = (long long)m.HV * VD;
  auto row_of = [&](int hv) { return (long long)c.x * ldu + (long long)hv * VD; };
  auto fetch_first = [&](int hv) {
    const long long state = ((long long)blockIdx.x * m.HV + hv) * KD * VD;
    load_tile_async(os, dO + row_of(hv), ldu, rows);
    load_tile_async(ns, vn + row_of(hv), ldu, rows);
    load_tile_async(hs, hst + state, VD, TILE);
    load_tile_async(es, dh + state, VD, TILE);
  };
  auto fetch_second = [&](int hv) {
    load_tile_async(ws, w + (long long)c.x * m.HV * KD + (long long)hv * KD, (long long)m.HV * KD, rows);
    load_tile_async(us, u + row_of(hv), ldu, rows);
    load_tile_async(Ts, T + ((long long)blockIdx.x * m.HV + hv) * TILE * TILE, TILE, TILE);
    load_tile_async(vs, v + (long long)c.x * ldv + (long long)hv * VD, ldv, rows);
    async_commit();
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
    fetch_second(hv);
    if (threadIdx.x < TILE) {
      G[threadIdx.x] = gates.g;
      B[threadIdx.x] = gates.b;
    }
    if (i + 1 < group) gates = fetch_gates(gc, beta, c, m.HV, hv + 1);
    async_wait<1>();
    __syncthreads();
    const float gl = G[TILE - 1];
    // Read again where needed: registers are what there is least of.
    const float *g0 = G + acc_row(0), *g1 = G + acc_row(2);
    float dg[2] = {0.f, 0.f}, db[2] = {0.f, 0.f};
    Frag X, Y;
    // Scores: dP = dO VnT, masked and scaled.
    X.zero();
    mm<false, true>(X, os, ns);
    mask_scores(X, G, scale);
    frag_to_tile(p, X);
    // Queries: dO hT, decayed, plus dP K.
    Y.zero();
    mm<false, true>(Y, os, hs);
    {
      const float s0 = scale * exp2_fast(*g0), s1 = scale * exp2_fast(*g1);
#pragma unroll
      for (int n = 0; n < NT; ++n) { Y.v[n][0] *= s0; Y.v[n][1] *= s0; Y.v[n][2] *= s1; Y.v[n][3] *= s1; }
    }
    rows_sync();
    mm<false, false>(Y, p, ks);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int hh = 0; hh < 2; ++hh) {
        const float2 x = pair_of(qs, n, hh);
        dg[hh] = fmaf(Y.v[n][2 * hh], x.x, fmaf(Y.v[n][2 * hh + 1], x.y, dg[hh]));
        Q.v[n][2 * hh] += Y.v[n][2 * hh];
        Q.v[n][2 * hh + 1] += Y.v[n][2 * hh + 1];
      }
    // Keys through the state: Vn dhT, decayed. Its dot with k, and <h, dh>, belong to the chunk's last decay.
    Y.zero();
    mm<false, true>(Y, ns, es);
    float last = 0.f;
    {
      const float s0 = exp2_fast(gl - *g0), s1 = exp2_fast(gl - *g1);
      float hd = 0.f;
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        Y.v[n][0] *= s0; Y.v[n][1] *= s0; Y.v[n][2] *= s1; Y.v[n][3] *= s1;
#pragma unroll
        for (int hh = 0; hh < 2; ++hh) {
          const float2 x = pair_of(ks, n, hh), s = pair_of(hs, n, hh), t = pair_of(es, n, hh);
          last = fmaf(Y.v[n][2 * hh], x.x, fmaf(Y.v[n][2 * hh + 1], x.y, last));
          hd = fmaf(s.x, t.x, fmaf(s.y, t.y, hd));
        }
      }
      last = fmaf(hd, exp2_fast(gl), last);
    }
    // dw = -dVn hT.
    X.zero();
    mm<false, true>(X, fs, hs);
    __syncthreads();  // p (dP) is complete; dO, vn, h, dh are free
    if (i + 1 < group) fetch_first(hv + 1);
    async_commit();
    mm<true, false>(Y, p, qs);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int hh = 0; hh < 2; ++hh) {
        const float2 x = pair_of(ks, n, hh);
        dg[hh] = fmaf(-Y.v[n][2 * hh], x.x, fmaf(-Y.v[n][2 * hh + 1], x.y, dg[hh]));
        K.v[n][2 * hh] += Y.v[n][2 * hh];
        K.v[n][2 * hh + 1] += Y.v[n][2 * hh + 1];
      }
    __syncthreads();  // everyone is done with dP
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) X.v[n][r] = -X.v[n][r];
    frag_to_tile(p, X);
    async_wait<1>();
    __syncthreads();
    // Xk = TT dw and Xv = TT dVn; dA = -(Xk wT + Xv uT).
    Frag A;
    A.zero();
    X.zero();
    mm<true, false>(X, Ts, p);
    {
      const float e0 = exp2_fast(*g0), e1 = exp2_fast(*g1), b0 = B[acc_row(0)], b1 = B[acc_row(2)];
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int hh = 0; hh < 2; ++hh) {
          const float ee = hh ? e1 : e0, bb = hh ? b1 : b0;
          const float2 x = pair_of(ks, n, hh);
          const float xk = ee * fmaf(X.v[n][2 * hh], x.x, X.v[n][2 * hh + 1] * x.y);
          db[hh] += xk;
          dg[hh] = fmaf(bb, xk, dg[hh]);
          K.v[n][2 * hh] = fmaf(bb * ee, X.v[n][2 * hh], K.v[n][2 * hh]);
          K.v[n][2 * hh + 1] = fmaf(bb * ee, X.v[n][2 * hh + 1], K.v[n][2 * hh + 1]);
        }
    }
    __syncthreads();  // everyone is done with dw
    frag_to_tile(p, X);
    rows_sync();
    mm<false, true>(A, p, ws);
    X.zero();
    mm<true, false>(X, Ts, fs);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int hh = 0; hh < 2; ++hh) {
        const float2 x = pair_of(vs, n, hh);
        db[hh] = fmaf(X.v[n][2 * hh], x.x, fmaf(X.v[n][2 * hh + 1], x.y, db[hh]));
      }
    rows_sync();
    frag_to_tile(p, X);
    rows_sync();
    mm<false, true>(A, p, us);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) X.v[n][r] *= B[acc_row(r)];
    rows_sync();
    frag_to_tile(p, X);
    store_own(dvout + (long long)c.x * lddv + (long long)hv * VD, lddv, p, rows);
    // F = -beta_i exp(G_i - G_j) dA, strictly lower; F . k kT gives decays and beta.
    Y.zero();
    mm<false, true>(Y, ks, ks);
    float rs[2] = {0.f, 0.f};
    __syncwarp();
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int ii = acc_row(r), jj = acc_col(n, r);
        const float s = ii > jj ? -A.v[n][r] * exp2_fast(G[ii] - G[jj]) : 0.f;
        rs[r >> 1] = fmaf(s, Y.v[n][r], rs[r >> 1]);
        A.v[n][r] = B[ii] * s;
        Y.v[n][r] *= A.v[n][r];
      }
    frag_to_tile(p, A);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float s = Y.v[n][r] + Y.v[n][r + 2];
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
        if (lane < 4) cs[warp * TILE + acc_col(n, r)] = s;
      }
#pragma unroll
    for (int hh = 0; hh < 2; ++hh) {
      const int ii = acc_row(2 * hh);
      const float s = row_sum4(db[hh] + rs[hh]), t = row_sum4(fmaf(B[ii], rs[hh], dg[hh]));
      if ((lane & 3) == 0) {
        rb[side * TILE + ii] = s;
        rg[side * TILE + ii] = t;
      }
    }
    red[threadIdx.x] = last;
    __syncthreads();  // p (F), sums; T, w, u, v, dv are free
    if (i + 1 < group) load_tile_async(fs, dv + row_of(hv + 1), ldu, rows);
    async_commit();
    mm<false, false>(K, p, ks);
    mm<true, false>(K, p, ks);
    if (threadIdx.x < 32) {
      float s = 0.f;
#pragma unroll
      for (int j = 0; j < THREADS; j += 64) s += red[lane + j] + red[lane + j + 32];
      s = warp_sum(s);
      if (lane == 0) red[0] = s;
    }
    __syncthreads();
    if (threadIdx.x < rows) {
      const int t = threadIdx.x;
      const long long at = (long long)(c.x + t) * m.HV + hv;
      dbeta[at] = rb[t] + rb[TILE + t];
      dG[at] = (rg[t] + rg[TILE + t]) - ((cs[t] + cs[TILE + t]) + (cs[2 * TILE + t] + cs[3 * TILE + t])) + (t == rows - 1 ? red[0] : 0.f);
    }
    __syncthreads();  // sums and gates may be overwritten
  }
  frag_to_tile(os, Q);
  store_own(dq + (long long)c.x * lddq + (long long)h * KD, lddq, os, rows);
  frag_to_tile(ns, K);
  store_own(dk + (long long)c.x * lddk + (long long)h * KD, lddk, ns, rows);
}
