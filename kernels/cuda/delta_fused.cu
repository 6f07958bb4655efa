// The delta rule's serial kernels with the chunk's own products fused in. Notation and layouts: delta_chunk.cu.
// Compile-time: KD, VD, and STAGES (2: the next chunk's tiles arrive while this one is computed; 1 where shared memory
// has no room). The chain of chunks is what takes the time: one warpgroup walks it, a second does what hangs off it.
#define GROUPS 2
#include "delta.cuh"

constexpr int STAGE = (3 * KT + 1) * TILE_ELEMS;

// Gates of one chunk, on their way: 64 threads hold a value each between the load and the store.
__device__ __forceinline__ float fetch_gate(const float* gc, const int4& c, int HV, int hv) {
  const int r = threadIdx.x < c.y ? threadIdx.x : c.y - 1;
  return threadIdx.x < TILE ? LOG2E * gc[(long long)(c.x + r) * HV + hv] : 0.f;
}
__device__ __forceinline__ void load_state(Frag (&S)[KT], const float* from, long long base) {
#pragma unroll
  for (int t = 0; t < KT; ++t)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) S[t].v[n][r] = from ? from[base + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] : 0.f;
}
__device__ __forceinline__ void save_state(const Frag (&S)[KT], float* to, long long base) {
  if (!to) return;
#pragma unroll
  for (int t = 0; t < KT; ++t)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) to[base + (long long)(t * TILE + acc_row(r)) * VD + acc_col(n, r)] = S[t].v[n][r];
}
__device__ __forceinline__ void scale_state(Frag (&S)[KT], float f) {
#pragma unroll
  for (int t = 0; t < KT; ++t)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) S[t].v[n][r] *= f;
}
// Rows scaled by a and b: the two rows a thread holds.
__device__ __forceinline__ void scale_frag_rows(Frag& x, float a, float b) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    x.v[n][0] *= a;
    x.v[n][1] *= a;
    x.v[n][2] *= b;
    x.v[n][3] *= b;
  }
}

// Recurrence and output: Vn, the states before each chunk, O. hst, vn, o may be null. Grid (VT, HV, documents).
extern "C" __global__ void __launch_bounds__(THREADS, KD == 64 && sizeof(elem) == 2 ? 2 : 1)
delta_forward(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ w,
              const elem* __restrict__ u, const float* __restrict__ gc, const float* __restrict__ state0, float scale, elem* __restrict__ hst,
              elem* __restrict__ vn, elem* __restrict__ o, float* __restrict__ stateN) {
  if ((int)blockIdx.z >= m.counts[0]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* Ss = first_tile(smem);
  elem* Vs = Ss + KT * TILE_ELEMS;
  elem* Vd = Vs + TILE_ELEMS;
  elem* Ps = Vd + TILE_ELEMS;
  elem* stages = Ps + TILE_ELEMS;
  float* Gs = reinterpret_cast<float*>(stages + STAGES * STAGE);  // [2][64]
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), v0 = blockIdx.x * TILE;
  const int2 d = m.docs[blockIdx.z];
  const long long ldw = (long long)m.HV * KD, ldu = (long long)m.HV * VD;
  const long long sbase = ((long long)blockIdx.z * m.HV + hv) * KD * VD + v0;
  auto fetch = [&](const int4& c, elem* st) {
#pragma unroll
    for (int t = 0; t < KT; ++t) {
      load_tile_async(st + t * TILE_ELEMS, w + (long long)c.x * ldw + (long long)hv * KD + t * TILE, ldw, c.y);
      load_tile_async(st + (KT + t) * TILE_ELEMS, k + (long long)c.x * ldk + (long long)h * KD + t * TILE, ldk, c.y);
      if (o) load_tile_async(st + (2 * KT + 1 + t) * TILE_ELEMS, q + (long long)c.x * ldq + (long long)h * KD + t * TILE, ldq, c.y);
    }
    load_tile_async(st + 2 * KT * TILE_ELEMS, u + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, c.y);
    async_commit();
  };
  auto save_states = [&](int chunk, const elem* Ss) {
    if (hst)
#pragma unroll
      for (int t = 0; t < KT; ++t) store_own_rows(hst + (((long long)chunk * m.HV + hv) * KD + t * TILE) * VD + v0, VD, Ss + t * TILE_ELEMS, TILE);
  };
  Frag S[KT];
  load_state(S, state0, sbase);
  float gate = 0.f;
  int4 next = make_int4(0, 0, 0, 0);
  if (d.y > 0) {
    next = m.chunks[d.x];
    gate = fetch_gate(gc, next, m.HV, hv);
    if (STAGES == 2) fetch(next, stages);
  }
  const bool chain = threadIdx.x < 128;
  for (int ci = 0; ci < d.y; ++ci) {
    const int chunk = d.x + ci;
    const int4 c = next;
    const int rows = c.y;
    elem* st = stages + (STAGES == 2 ? (ci & 1) * STAGE : 0);
    float* G = Gs + (ci & 1) * TILE;
    if (threadIdx.x < TILE) G[threadIdx.x] = gate;
    if (STAGES == 1) fetch(c, st);
    if (ci + 1 < d.y) next = m.chunks[chunk + 1];
    if (chain)
#pragma unroll
      for (int t = 0; t < KT; ++t) frag_to_tile(Ss + t * TILE_ELEMS, S[t]);
    async_wait<0>();
    tiles_sync();  // tiles, gates and state are there; everyone is done with the other stage
    const elem *Ws = st, *Ks = st + KT * TILE_ELEMS, *Us = st + 2 * KT * TILE_ELEMS, *Qs = st + (2 * KT + 1) * TILE_ELEMS;
    if (ci + 1 < d.y) {
      gate = fetch_gate(gc, next, m.HV, hv);
      if (STAGES == 2) fetch(next, stages + ((ci + 1) & 1) * STAGE);
    }
    const float gl = G[TILE - 1];
    if (chain) {
      Frag x;
      x.zero();
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<false, false>(x, Ws + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
      const float f0 = exp2_fast(gl - G[acc_row(0)]), f1 = exp2_fast(gl - G[acc_row(2)]);
      scale_state(S, exp2_fast(gl));
      mm_wait<0>(x);
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int hh = 0; hh < 2; ++hh) {
          const int e = tile_at(acc_row(2 * hh), acc_col(n, 0));
          const float2 uu = load2(Us + e);
          const float a = uu.x - x.v[n][2 * hh], b = uu.y - x.v[n][2 * hh + 1], f = hh ? f1 : f0;
          store2(Vs + e, a, b);
          store2(Vd + e, a * f, b * f);
        }
      tiles_sync();  // Vs, Vd; nobody reads the state any more
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<true, false>(S[t], Ks + t * TILE_ELEMS, Vd);
      if (vn) store_own_rows(vn + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Vs, rows);
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_wait<0>(S[t]);
    } else if (o) {
      Frag x, y;
      x.zero();
      y.zero();
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<false, true>(x, Qs + t * TILE_ELEMS, Ks + t * TILE_ELEMS);
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<false, false>(y, Qs + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
      save_states(chunk, Ss);
      mm_wait<KT>(x);
      mask_scores(x, G, scale);
      mm_wait<0>(y);
      scale_frag_rows(y, scale * exp2_fast(G[acc_row(0)]), scale * exp2_fast(G[acc_row(2)]));
      tiles_sync();
      mm_of<false>(y, x, Vs, Ps);
      frag_to_tile(Ps, y);
      store_own_rows(o + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Ps, rows);
    } else {
      save_states(chunk, Ss);
      tiles_sync();
    }
    if (STAGES == 1) __syncthreads();  // the stage may be overwritten now
  }
  if (chain) save_state(S, stateN, sbase);
}

// The reverse recurrence: the whole gradient of Vn, and dh, the gradient of the state after each chunk.
// Grid (VT, HV, documents).
extern "C" __global__ void __launch_bounds__(THREADS, KD == 64 && sizeof(elem) == 2 ? 2 : 1)
delta_backward(Meta m, const elem* __restrict__ q, long long ldq, const elem* __restrict__ k, long long ldk, const elem* __restrict__ w,
               const elem* __restrict__ dO, const float* __restrict__ gc, const float* __restrict__ dstateN, float scale, elem* __restrict__ dv,
               elem* __restrict__ dh, float* __restrict__ dstate0) {
  if ((int)blockIdx.z >= m.counts[0]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* Ss = first_tile(smem);
  elem* Xs = Ss + KT * TILE_ELEMS;
  elem* Ds = Xs + TILE_ELEMS;
  elem* Ps = Ds + TILE_ELEMS;
  elem* stages = Ps + TILE_ELEMS;
  float* Gs = reinterpret_cast<float*>(stages + STAGES * STAGE);
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), v0 = blockIdx.x * TILE;
  const int2 d = m.docs[blockIdx.z];
  const long long ldw = (long long)m.HV * KD, ldu = (long long)m.HV * VD;
  const long long sbase = ((long long)blockIdx.z * m.HV + hv) * KD * VD + v0;
  auto fetch = [&](const int4& c, elem* st) {
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
  load_state(S, dstateN, sbase);
  float gate = 0.f;
  int4 next = make_int4(0, 0, 0, 0);
  if (d.y > 0) {
    next = m.chunks[d.x + d.y - 1];
    gate = fetch_gate(gc, next, m.HV, hv);
    if (STAGES == 2) fetch(next, stages + ((d.y - 1) & 1) * STAGE);
  }
  const bool chain = threadIdx.x < 128;
  for (int ci = d.y - 1; ci >= 0; --ci) {
    const int chunk = d.x + ci;
    const int4 c = next;
    const int rows = c.y;
    elem* st = stages + (STAGES == 2 ? (ci & 1) * STAGE : 0);
    float* G = Gs + (ci & 1) * TILE;
    if (threadIdx.x < TILE) G[threadIdx.x] = gate;
    if (STAGES == 1) fetch(c, st);
    if (ci > 0) next = m.chunks[chunk - 1];
    if (chain)
#pragma unroll
      for (int t = 0; t < KT; ++t) frag_to_tile(Ss + t * TILE_ELEMS, S[t]);
    async_wait<0>();
    tiles_sync();
    const elem *Ws = st, *Ks = st + KT * TILE_ELEMS, *Qs = st + 2 * KT * TILE_ELEMS, *Os = st + 3 * KT * TILE_ELEMS;
    if (ci > 0) {
      gate = fetch_gate(gc, next, m.HV, hv);
      if (STAGES == 2) fetch(next, stages + ((ci - 1) & 1) * STAGE);
    }
    const float gl = G[TILE - 1], g0 = G[acc_row(0)], g1 = G[acc_row(2)];
    Frag x;
    x.zero();
    if (chain) {
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<false, false>(x, Ks + t * TILE_ELEMS, Ss + t * TILE_ELEMS);
      scale_state(S, exp2_fast(gl));
      mm_wait<0>(x);
      scale_frag_rows(x, exp2_fast(gl - g0), exp2_fast(gl - g1));
      tiles_sync();  // Ps, Ds; nobody reads the state any more
      mm_start<true, false>(x, Ps, Os);
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<true, false>(S[t], Qs + t * TILE_ELEMS, Ds);
      mm_wait<KT>(x);
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) x.v[n][r] = acc_row(r) < rows ? -x.v[n][r] : 0.f;
      frag_to_tile(Xs, x);
      tiles_sync();  // Xs
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<true, false>(S[t], Ws + t * TILE_ELEMS, Xs);
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_wait<0>(S[t]);
    } else {
#pragma unroll
      for (int t = 0; t < KT; ++t) mm_start<false, true>(x, Qs + t * TILE_ELEMS, Ks + t * TILE_ELEMS);
      const float f0 = scale * exp2_fast(g0), f1 = scale * exp2_fast(g1);
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int hh = 0; hh < 2; ++hh) {
          const int e = tile_at(acc_row(2 * hh), acc_col(n, 0));
          const float2 g = load2(Os + e);
          const float f = hh ? f1 : f0;
          store2(Ds + e, g.x * f, g.y * f);
        }
      mm_wait<0>(x);
      mask_scores(x, G, scale);
      frag_to_tile(Ps, x);
#pragma unroll
      for (int t = 0; t < KT; ++t) store_own_rows(dh + (((long long)chunk * m.HV + hv) * KD + t * TILE) * VD + v0, VD, Ss + t * TILE_ELEMS, TILE);
      tiles_sync();
      tiles_sync();
      store_own_rows<true>(dv + (long long)c.x * ldu + (long long)hv * VD + v0, ldu, Xs, rows);
    }
    if (STAGES == 1) __syncthreads();
  }
  if (chain) save_state(S, dstate0, sbase);
}
