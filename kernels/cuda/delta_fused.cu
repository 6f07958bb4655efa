// The delta rule's serial kernels with the chunk's own products fused in. Notation and layouts: delta_chunk.cu.
// Compile-time: KD, VD, and STAGES (2: the next chunk's tiles arrive while this one is computed; 1 where shared memory
// has no room). The chain of chunks is what takes the time, so a tile's work is spread over eight warps.
#define WARPS_N 2
#include "delta.cuh"

// Prefetch of the gates of one chunk: 64 threads hold a value each between the load and the store.
__device__ __forceinline__ float fetch_gate(const float* gc, const int4& c, int HV, int hv) {
  const int r = threadIdx.x < c.y ? threadIdx.x : c.y - 1;
  return threadIdx.x < TILE ? LOG2E * gc[(long long)(c.x + r) * HV + hv] : 0.f;
}

// Recurrence and output: Vn, the states before each chunk, O. hst, vn, o may be null. Grid (VT, HV, documents).
extern "C" __global__ void __launch_bounds__(THREADS, KD == 64 && sizeof(elem) == 2 ? 2 : 1)
delta_forward(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ w,
              const elem* __restrict__ u, const float* __restrict__ gc, const float* __restrict__ state0, float scale, elem* __restrict__ hst,
              elem* __restrict__ vn, elem* __restrict__ o, float* __restrict__ stateN) {
  if ((int)blockIdx.z >= m.counts[0]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  constexpr int STAGE = (3 * KT + 1) * TILE_ELEMS;
  float* Gs = reinterpret_cast<float*>(smem);  // [2][64]
  elem* Ss = reinterpret_cast<elem*>(Gs + 2 * TILE);
  elem* Vs = Ss + KT * TILE_ELEMS;
  elem* Vd = Vs + TILE_ELEMS;
  elem* Ps = Vd + TILE_ELEMS;
  elem* stages = Ps + TILE_ELEMS;
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), v0 = blockIdx.x * TILE;
  const int2 d = m.docs[blockIdx.z];
  const long long ldw = (long long)m.HV * KD, ldu = (long long)m.HV * VD;
  const long long sbase = ((long long)blockIdx.z * m.HV + hv) * KD * VD + v0;
  auto fetch = [&](int chunk, elem* st) {
    const int4 c = m.chunks[chunk];
#pragma unroll
    for (int t = 0; t < KT; ++t) {
      load_tile_async(st + t * TILE_ELEMS, w + (long long)c.x * ldw + (long long)hv * KD + t * TILE, ldw, c.y);
      load_tile_async(st + (KT + t) * TILE_ELEMS, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, c.y);
      if (o) load_tile_async(st + (2 * KT + 1 + t) * TILE_ELEMS, q + (long long)c.x * ldq + (long long)h * KD + t * TILE, ldq, c.y);
    }
    load_tile_async(st + 2 * KT * TILE_ELEMS, u + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, c.y);
    async_commit();
  };
  Frag S[KT];
#pragma unroll
  for (int t = 0; t < KT; ++t)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) S[t].v[n][r] = state0 ? state0[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] : 0.f;
  float gate = 0.f;
  if (d.y > 0) {
    gate = fetch_gate(gc, m.chunks[d.x], m.HV, hv);
    if (STAGES == 2) fetch(d.x, stages);
  }
  for (int ci = 0; ci < d.y; ++ci) {
    const int chunk = d.x + ci;
    const int4 c = m.chunks[chunk];
    const int rows = c.y;
    elem* st = stages + (STAGES == 2 ? (ci & 1) * STAGE : 0);
    float* G = Gs + (ci & 1) * TILE;
    if (threadIdx.x < TILE) G[threadIdx.x] = gate;
    if (STAGES == 1) fetch(chunk, st);
    async_wait<0>();
#pragma unroll
    for (int t = 0; t < KT; ++t) frag_to_tile(Ss + t * TILE_ELEMS, S[t]);
    __syncthreads();  // tiles, gates and state are there; everyone is done with the other stage
    if (ci + 1 < d.y) {
      gate = fetch_gate(gc, m.chunks[chunk + 1], m.HV, hv);
      if (STAGES == 2) fetch(chunk + 1, stages + ((ci + 1) & 1) * STAGE);
    }
    const elem *Ws = st, *Ks = st + KT * TILE_ELEMS, *Us = st + 2 * KT * TILE_ELEMS, *Qs = st + (2 * KT + 1) * TILE_ELEMS;
    if (hst)
#pragma unroll
      for (int t = 0; t < KT; ++t) store_own(hst + (((long long)chunk * m.HV + hv) * KD + t * TILE) * VD + v0, VD, Ss + t * TILE_ELEMS, TILE);
    const float gl = G[TILE - 1];
    Frag x;
    x.zero();
#pragma unroll
    for (int t = 0; t < KT; ++t) mm<false, false>(x, Ws + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int hh = 0; hh < 2; ++hh) {
        const int at = acc_row(2 * hh) * LD + acc_col(n, 0);
        const float2 uu = load2(Us + at);
        const float a = uu.x - x.v[n][2 * hh], b = uu.y - x.v[n][2 * hh + 1], f = exp2_fast(gl - G[acc_row(2 * hh)]);
        store2(Vs + at, a, b);
        store2(Vd + at, a * f, b * f);
      }
    if (vn) store_own(vn + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Vs, rows);
    Frag y;
    if (o) {
      x.zero();
#pragma unroll
      for (int t = 0; t < KT; ++t) mm<false, true>(x, Qs + t * TILE_ELEMS, Ks + t * TILE_ELEMS);
      mask_scores(x, G, scale);
      frag_to_tile(Ps, x);
      y.zero();
#pragma unroll
      for (int t = 0; t < KT; ++t) mm<false, false>(y, Qs + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
    }
    __syncthreads();  // Vs, Vd
    const float dec = exp2_fast(gl);
#pragma unroll
    for (int t = 0; t < KT; ++t) {
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) S[t].v[n][r] *= dec;
      mm<true, false>(S[t], Ks + t * TILE_ELEMS, Vd);
    }
    if (o) {
      const float e0 = scale * exp2_fast(G[acc_row(0)]), e1 = scale * exp2_fast(G[acc_row(2)]);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        y.v[n][0] *= e0;
        y.v[n][1] *= e0;
        y.v[n][2] *= e1;
        y.v[n][3] *= e1;
      }
      rows_sync();
      mm<false, false>(y, Ps, Vs);
      rows_sync();
      frag_to_tile(Ps, y);
      store_own(o + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Ps, rows);
    }
    if (STAGES == 1 || KT > 1) __syncthreads();  // the stage (or the state tiles) may be overwritten now
  }
  if (stateN)
#pragma unroll
    for (int t = 0; t < KT; ++t)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) stateN[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] = S[t].v[n][r];
}

// The reverse recurrence: the whole gradient of Vn, and dh, the gradient of the state after each chunk.
// Grid (VT, HV, documents).
extern "C" __global__ void __launch_bounds__(THREADS, KD == 64 && sizeof(elem) == 2 ? 2 : 1)
delta_backward(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ w,
               const elem* __restrict__ dO, const float* __restrict__ gc, const float* __restrict__ dstateN, float scale, elem* __restrict__ dv,
               elem* __restrict__ dh, float* __restrict__ dstate0) {
  if ((int)blockIdx.z >= m.counts[0]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  constexpr int STAGE = (3 * KT + 1) * TILE_ELEMS;
  float* Gs = reinterpret_cast<float*>(smem);
  elem* Ss = reinterpret_cast<elem*>(Gs + 2 * TILE);
  elem* Xs = Ss + KT * TILE_ELEMS;
  elem* Ds = Xs + TILE_ELEMS;
  elem* Ps = Ds + TILE_ELEMS;
  elem* stages = Ps + TILE_ELEMS;
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), v0 = blockIdx.x * TILE;
  const int2 d = m.docs[blockIdx.z];
  const long long ldw = (long long)m.HV * KD, ldu = (long long)m.HV * VD;
  const long long sbase = ((long long)blockIdx.z * m.HV + hv) * KD * VD + v0;
  auto fetch = [&](int chunk, elem* st) {
    const int4 c = m.chunks[chunk];
#pragma unroll
    for (int t = 0; t < KT; ++t) {
      load_tile_async(st + t * TILE_ELEMS, w + (long long)c.x * ldw + (long long)hv * KD + t * TILE, ldw, c.y);
      load_tile_async(st + (KT + t) * TILE_ELEMS, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, c.y);
      load_tile_async(st + (2 * KT + t) * TILE_ELEMS, q + (long long)c.x * ldq + (long long)h * KD + t * TILE, ldq, c.y);
    }
    load_tile_async(st + 3 * KT * TILE_ELEMS, dO + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, c.y);
    async_commit();
  };
  Frag S[KT];
#pragma unroll
  for (int t = 0; t < KT; ++t)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) S[t].v[n][r] = dstateN ? dstateN[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] : 0.f;
  float gate = 0.f;
  if (d.y > 0) {
    gate = fetch_gate(gc, m.chunks[d.x + d.y - 1], m.HV, hv);
    if (STAGES == 2) fetch(d.x + d.y - 1, stages + ((d.y - 1) & 1) * STAGE);
  }
  for (int ci = d.y - 1; ci >= 0; --ci) {
    const int chunk = d.x + ci;
    const int4 c = m.chunks[chunk];
    const int rows = c.y;
    elem* st = stages + (STAGES == 2 ? (ci & 1) * STAGE : 0);
    float* G = Gs + (ci & 1) * TILE;
    if (threadIdx.x < TILE) G[threadIdx.x] = gate;
    if (STAGES == 1) fetch(chunk, st);
    async_wait<0>();
#pragma unroll
    for (int t = 0; t < KT; ++t) frag_to_tile(Ss + t * TILE_ELEMS, S[t]);
    __syncthreads();
    if (ci > 0) {
      gate = fetch_gate(gc, m.chunks[chunk - 1], m.HV, hv);
      if (STAGES == 2) fetch(chunk - 1, stages + ((ci - 1) & 1) * STAGE);
    }
    const elem *Ws = st, *Ks = st + KT * TILE_ELEMS, *Qs = st + 2 * KT * TILE_ELEMS, *Os = st + 3 * KT * TILE_ELEMS;
#pragma unroll
    for (int t = 0; t < KT; ++t) store_own(dh + (((long long)chunk * m.HV + hv) * KD + t * TILE) * VD + v0, VD, Ss + t * TILE_ELEMS, TILE);
    const float gl = G[TILE - 1];
    Frag x, p;
    p.zero();
#pragma unroll
    for (int t = 0; t < KT; ++t) mm<false, true>(p, Qs + t * TILE_ELEMS, Ks + t * TILE_ELEMS);
    mask_scores(p, G, scale);
    frag_to_tile(Ps, p);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int hh = 0; hh < 2; ++hh) {
        const int at = acc_row(2 * hh) * LD + acc_col(n, 0);
        const float2 g = load2(Os + at);
        const float f = scale * exp2_fast(G[acc_row(2 * hh)]);
        store2(Ds + at, g.x * f, g.y * f);
      }
    x.zero();
#pragma unroll
    for (int t = 0; t < KT; ++t) mm<false, false>(x, Ks + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) x.v[n][r] *= exp2_fast(gl - G[acc_row(r)]);
    __syncthreads();  // Ps, Ds
    mm<true, false>(x, Ps, Os);
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) x.v[n][r] = acc_row(r) < rows ? x.v[n][r] : 0.f;
    frag_to_tile(Xs, x);
    store_own(dv + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Xs, rows);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) x.v[n][r] = -x.v[n][r];
    frag_to_tile(Xs, x);
    __syncthreads();  // Xs
    const float dec = exp2_fast(gl);
#pragma unroll
    for (int t = 0; t < KT; ++t) {
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) S[t].v[n][r] *= dec;
      mm<true, false>(S[t], Qs + t * TILE_ELEMS, Ds);
      mm<true, false>(S[t], Ws + t * TILE_ELEMS, Xs);
    }
    if (STAGES == 1) __syncthreads();
  }
  if (dstate0)
#pragma unroll
    for (int t = 0; t < KT; ++t)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) dstate0[sbase + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] = S[t].v[n][r];
}

