// Chunked gated delta rule, forward and backward (WY form, chunk 64).
//
// Per value head, with G the within-chunk cumulative log decay and q, k already normalised:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j  (i > j),   T = (I + A)^-1
//   U = T (beta V),   W = T (beta exp(G) K)
//   Vn = U - W S,     S' = exp(G_C) S + sum_j exp(G_C - G_j) k_j Vn_j
//   O_i = scale (exp(G_i) q_i S + sum_{j<=i} exp(G_i - G_j) (q_i.k_j) Vn_j)
//
// Compile-time: KD, VD (multiples of 64). Layouts, rows = tokens of all sequences one after another:
//   q, k [rows, H, KD] with row strides ldq, ldk;  v [rows, HV, VD] with row stride ldv;  gc, beta [rows, HV] fp32
//   w [rows, HV, KD], u, vn, o, dO, dv [rows, HV, VD] elem;  T [chunks, HV, 64, 64] elem
//   gc is the cumulative sum of g within a chunk (`sum_gates`)
//   h, dh [chunks, HV, KD, VD] elem: the state before a chunk, the gradient of the state after it
//   state0, stateN, dstate0, dstateN [docs, HV, KD, VD] fp32, each may be null
// chunks[c] = {first row, rows, document, index in the document}; docs[d] = {first chunk, chunks}. Both lists
// and their counts live on the device, so that one captured launch serves any packing of a batch.
#include "delta.cuh"

// Gates of a chunk of one head into shared memory: G = cumulative sum of g in units of log 2, B = beta, rows past the end
// repeating the last sum and with beta 0. gc gets the sum itself, for the kernels that come after. The first warp does
// it, two rows a lane.
__device__ __forceinline__ void sum_gates(float* G, float* B, const float* g, const float* beta, float* gc, const int4& c, int HV, int hv) {
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x, r = lane * 2;
  const long long at = (long long)(c.x + r) * HV + hv;
  const float a = r < c.y ? g[at] : 0.f, b = r + 1 < c.y ? g[at + HV] : 0.f;
  B[r] = r < c.y ? beta[at] : 0.f;
  B[r + 1] = r + 1 < c.y ? beta[at + HV] : 0.f;
  float s = a + b;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const float n = __shfl_up_sync(0xffffffffu, s, o);
    if (lane >= o) s += n;
  }
  const float first = s - (a + b) + a;
  G[r] = LOG2E * first;
  G[r + 1] = LOG2E * s;
  if (r < c.y) gc[at] = first;
  if (r + 1 < c.y) gc[at + HV] = s;
}

// dg_t = sum over s >= t of the chunk of dG_s, dG summed over its slices. Grid (chunks).
extern "C" __global__ void __launch_bounds__(256)
chunk_cumsum_backward(Meta m, const float* __restrict__ dG, long long total_rows, float* __restrict__ dg) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  const int4 c = m.chunks[blockIdx.x];
  const int lane = threadIdx.x & 31;
  for (int hv = threadIdx.x >> 5; hv < m.HV; hv += 8) {
    const long long at = (long long)(c.x + lane * 2) * m.HV + hv;
    float a = 0.f, b = 0.f;
    for (int s = 0; s < KT; ++s) {
      const float* p = dG + (long long)s * total_rows * m.HV + at;
      if (lane * 2 < c.y) a += p[0];
      if (lane * 2 + 1 < c.y) b += p[m.HV];
    }
    float s = a + b;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      float n = __shfl_down_sync(0xffffffffu, s, o);
      if (lane + o < 32) s += n;
    }
    if (lane * 2 < c.y) dg[at] = s;
    if (lane * 2 + 1 < c.y) dg[at + m.HV] = s - (a + b) + b;
  }
}

// ------------------------------------------------------------------------------------------------------------------
// T, and W and U from it. T's columns are scaled (by beta exp(G) for W, by beta for U), not the rows of K and V: the
// scaled copies come out of registers.

// Tw = T diag(S), Tu = T diag(B) of a stored T. Tw may be T itself.
__device__ __forceinline__ void scale_columns(elem* Tw, elem* Tu, const elem* T, const float* S, const float* B) {
  for (int i = threadIdx.x; i < TILE * TILE / 8; i += THREADS) {
    const int r = i >> 3, c = (i & 7) * 8;
#ifdef ELEM_F32
    for (int j = 0; j < 8; ++j) {
      const float t = T[tile_at(r, c + j)];
      Tw[tile_at(r, c + j)] = t * S[c + j];
      Tu[tile_at(r, c + j)] = t * B[c + j];
    }
#else
    const int e = tile_at(r, c);
    const uint4 x = *reinterpret_cast<const uint4*>(T + e);
    const unsigned in[4] = {x.x, x.y, x.z, x.w};
    unsigned w[4], u[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 t = unpack_bf16(in[j]), s = *reinterpret_cast<const float2*>(S + c + 2 * j), b = *reinterpret_cast<const float2*>(B + c + 2 * j);
      w[j] = pack_bf16(t.x * s.x, t.y * s.y);
      u[j] = pack_bf16(t.x * b.x, t.y * b.y);
    }
    *reinterpret_cast<uint4*>(Tw + e) = make_uint4(w[0], w[1], w[2], w[3]);
    *reinterpret_cast<uint4*>(Tu + e) = make_uint4(u[0], u[1], u[2], u[3]);
#endif
  }
}

#ifdef ELEM_F32
// T = (I + A)^-1 for strictly lower triangular A by substitution, a thread a column.
__device__ void invert_unit_lower(const elem* A, elem* T) {
  const int c = threadIdx.x;
  if (c >= TILE) return;
  for (int i = 0; i < TILE; ++i) {
    float s = i == c ? 1.f : 0.f, z = 0.f;
    for (int j = c; j < i; j += 2) {
      s = fmaf(-A[tile_at(i, j)], T[tile_at(j, c)], s);
      if (j + 1 < i) z = fmaf(-A[tile_at(i, j + 1)], T[tile_at(j + 1, c)], z);
    }
    T[tile_at(i, c)] = s + z;
  }
}
#else
__device__ __forceinline__ unsigned transpose8x8(unsigned x) {
  unsigned y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
// x = hi + lo to 16 bits and more: the two halves of a product in bf16 that keeps fp32's digits.
__device__ __forceinline__ void split(float x, float y, unsigned& hi, unsigned& lo) {
  hi = pack_bf16(x, y);
  const float2 h = unpack_bf16(hi);
  lo = pack_bf16(x - h.x, y - h.y);
}
__device__ __forceinline__ void mma_split(float (&c)[2][4], const unsigned (&ah)[4], const unsigned (&al)[4], const unsigned (&bh)[4], const unsigned (&bl)[4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    mma16816(c[n], ah, bh[2 * n], bh[2 * n + 1]);
    mma16816(c[n], ah, bl[2 * n], bl[2 * n + 1]);
    mma16816(c[n], al, bh[2 * n], bh[2 * n + 1]);
  }
}

constexpr int DLD = 20;  // row stride of the diagonal blocks in fp32: float4 rows
constexpr int LLD = 24;  // row stride of the low halves of the diagonal's inverses: ldmatrix without bank conflicts

// T = (I + A)^-1, Tw = T diag(S), Tu = T diag(B) for the strictly lower triangular A = beta exp(G_i - G_j) `a`, in blocks
// of 16: the diagonal's by substitution in fp32, a warp each; then a warp a block column, T_ij = -T_ii sum_k A_ik T_kj,
// transposed so that a finished block is an operand as it stands in the registers; operands split in two bf16.
// AA holds, below the diagonal, the high halves of A, on it those of T's blocks, and above it A's low halves; `low` the
// low halves of T's blocks on the diagonal, [64][LLD].
__device__ __forceinline__ void invert_unit_lower(const Frag& a, const float* G, const float* B, const float* S, elem* AA, elem* T, elem* Tw, elem* Tu,
                                                  elem* low) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r8 = lane & 7, q = lane >> 3;
  float* D = reinterpret_cast<float*>(Tw) + warp * 16 * DLD;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int cb = n >> 1;
    if (cb > warp) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = acc_row(2 * h), j = acc_col(n, 0);
      const float x = i > j ? B[i] * exp2_fast(G[i] - G[j]) * a.v[n][2 * h] : 0.f;
      const float y = i > j + 1 ? B[i] * exp2_fast(G[i] - G[j + 1]) * a.v[n][2 * h + 1] : 0.f;
      if (cb == warp) {
        *reinterpret_cast<float2*>(D + (i & 15) * DLD + (j & 15)) = make_float2(x, y);
      } else {
        unsigned hi, lo;
        split(x, y, hi, lo);
        *reinterpret_cast<unsigned*>(AA + tile_at(i, j)) = hi;
        *reinterpret_cast<unsigned*>(AA + tile_at(cb * 16 + (i & 15), warp * 16 + (j & 15))) = lo;
      }
    }
  }
  __syncwarp();
  const int col = lane & 15, first = warp * 16;
  float t[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float s[4] = {i == col ? 1.f : 0.f, 0.f, 0.f, 0.f};  // four chains: the sum's latency, not its length, is the cost
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 d = *reinterpret_cast<const float4*>(D + i * DLD + j);
      s[0] = fmaf(-d.x, t[j], s[0]);
      if (j + 1 < i) s[1] = fmaf(-d.y, t[j + 1], s[1]);
      if (j + 2 < i) s[2] = fmaf(-d.z, t[j + 2], s[2]);
      if (j + 3 < i) s[3] = fmaf(-d.w, t[j + 3], s[3]);
    }
    t[i] = (s[0] + s[1]) + (s[2] + s[3]);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const bf16 hi = f32_to_bf16(t[i]);
    if (lane < 16) {
      AA[tile_at(first + i, first + col)] = hi;
      T[tile_at(first + i, first + col)] = hi;
    } else {
      low[(first + i) * LLD + col] = f32_to_bf16(t[i] - bf16_to_f32(hi));
    }
  }
  __syncthreads();  // A, the diagonal's inverses and S are there; D is done with
  {
    elem* to = lane < 16 ? Tw : Tu;
    const float f = (lane < 16 ? S : B)[first + col];
#pragma unroll
    for (int i = 0; i < 16; ++i) to[tile_at(first + i, first + col)] = f32_to_bf16(t[i] * f);
  }
  for (int i = threadIdx.x; i < TILE * 8; i += THREADS)  // nothing above the diagonal's blocks
    if (((i & 7) >> 1) > (i >> 7)) {
      const int e = tile_at(i >> 3, (i & 7) * 8);
      *reinterpret_cast<uint4*>(T + e) = *reinterpret_cast<uint4*>(Tw + e) = *reinterpret_cast<uint4*>(Tu + e) = make_uint4(0, 0, 0, 0);
    }
  unsigned ph[4][4], pl[4][4];
  const int br = r8 + (q >> 1) * 8, bc = (q & 1) * 8;  // where this lane's row of the four 8 x 8 matrices of a block begins
  ldsm_t(ph[0], AA + tile_at(first + br, first + bc));
  ldsm_t(pl[0], low + (first + br) * LLD + bc);
#pragma unroll
  for (int d = 1; d < 4; ++d) {
    const int bi = warp + d;
    if (bi > 3) break;
    float s[2][4] = {}, x[2][4] = {};
    unsigned bh[4], bl[4], sh[4], sl[4];
#pragma unroll
    for (int e = 0; e < d; ++e) {
      const int k = warp + e;
      ldsm(bh, AA + tile_at(bi * 16 + br, k * 16 + bc));
      ldsm(bl, AA + tile_at(k * 16 + br, bi * 16 + bc));
      mma_split(s, ph[e], pl[e], bh, bl);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) split(s[r >> 1][(r & 1) * 2], s[r >> 1][(r & 1) * 2 + 1], sh[r], sl[r]);
    ldsm(bh, AA + tile_at(bi * 16 + br, bi * 16 + bc));
    ldsm(bl, low + (bi * 16 + br) * LLD + bc);
    mma_split(x, sh, sl, bh, bl);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      split(-x[r >> 1][(r & 1) * 2], -x[r >> 1][(r & 1) * 2 + 1], ph[d][r], pl[d][r]);
      const unsigned y = transpose8x8(ph[d][r]);
      const float2 rest = unpack_bf16(transpose8x8(pl[d][r]));
      const int c = first + (lane & 3) * 2 + (r & 1) * 8, e = tile_at(bi * 16 + (lane >> 2) + (r >> 1) * 8, c);
      float2 v = unpack_bf16(y);
      v.x += rest.x;
      v.y += rest.y;
      const float2 fs = *reinterpret_cast<const float2*>(S + c), fb = *reinterpret_cast<const float2*>(B + c);
      *reinterpret_cast<unsigned*>(T + e) = y;
      *reinterpret_cast<unsigned*>(Tw + e) = pack_bf16(v.x * fs.x, v.y * fs.y);
      *reinterpret_cast<unsigned*>(Tu + e) = pack_bf16(v.x * fb.x, v.y * fb.y);
    }
  }
}
#endif

// Chunk-local part: T (Tout may be null), W, U. Grid (chunks, HV).
extern "C" __global__ void __launch_bounds__(THREADS, sizeof(elem) == 2 ? 4 : 1)
delta_wy(Meta m, const elem* __restrict__ k, long long ldk, const elem* __restrict__ v, long long ldv, const float* __restrict__ g,
         const float* __restrict__ beta, float* __restrict__ gc, elem* __restrict__ Tout, elem* __restrict__ w, elem* __restrict__ u) {
  if ((int)blockIdx.x >= m.counts[1]) return;
  extern __shared__ __align__(16) unsigned char smem[];
  elem* ks = first_tile(smem);
  elem* vs = ks + TILE_ELEMS;
  elem* AA = vs + TILE_ELEMS;
  elem* Ts = AA + TILE_ELEMS;
  elem* Tw = Ts + TILE_ELEMS;
  elem* Tu = Tw + TILE_ELEMS;
  float* G = reinterpret_cast<float*>(Tu + TILE_ELEMS);
  float* B = G + TILE;
  float* S = B + TILE;
  const int4 c = m.chunks[blockIdx.x];
  const int hv = blockIdx.y, h = hv / (m.HV / m.H), rows = c.y;
  const elem *kb = k + (long long)c.x * ldk + (long long)h * KD, *vb = v + (long long)c.x * ldv + (long long)hv * VD;
  Frag a;
  a.zero();
  for (int t = 0; t < KT; ++t) {
    if (t > 0) __syncthreads();
    load_tile_async(ks, kb + t * TILE, ldk, rows);
    async_commit();
    if (t == 0) {
      load_tile_async(vs, vb, ldv, rows);
      async_commit();
      sum_gates(G, B, g, beta, gc, c, m.HV, hv);
    }
    if (t == 0) async_wait<1>();
    else async_wait<0>();
    tiles_sync();
    mm<false, true>(a, ks, ks);
  }
  if (threadIdx.x < TILE) S[threadIdx.x] = B[threadIdx.x] * exp2_fast(G[threadIdx.x]);
#ifdef ELEM_F32
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int i = acc_row(r), j = acc_col(n, r);
      AA[tile_at(i, j)] = i > j ? B[i] * exp2_fast(G[i] - G[j]) * a.v[n][r] : 0.f;
    }
  __syncthreads();
  invert_unit_lower(AA, Ts);
  __syncthreads();
  scale_columns(Tw, Tu, Ts, S, B);
#else
  invert_unit_lower(a, G, B, S, AA, Ts, Tw, Tu, reinterpret_cast<elem*>(S + TILE));
#endif
  async_wait<0>();
  tiles_sync();
  if (Tout) store_own_rows(Tout + ((long long)blockIdx.x * m.HV + hv) * TILE * TILE, TILE, Ts, TILE);
  // The last key tile and the first value tile are there. Results pass through AA, a warp its own rows.
  const long long ldw = (long long)m.HV * KD, ldu = (long long)m.HV * VD;
  elem *wb = w + ((long long)c.x * m.HV + hv) * KD, *ub = u + ((long long)c.x * m.HV + hv) * VD;
  for (int t = 0; t < (KT > VT ? KT : VT); ++t) {
    const int o = KT - 1 - t;
    if (t > 0) {
      __syncthreads();
      if (t < KT) load_tile(ks, kb + o * TILE, ldk, rows);
      if (t < VT) load_tile(vs, vb + t * TILE, ldv, rows);
      tiles_sync();
    }
    Frag x, y;
    x.zero();
    y.zero();
    if (t < KT) mm_start<false, false>(x, Tw, ks);
    if (t < VT) mm_start<false, false>(y, Tu, vs);
    if (t < KT && t < VT) mm_wait<1>(x);
    else mm_wait<0>(x);
    if (t < KT) {
      __syncwarp();
      frag_to_tile(AA, x);
      store_own_rows(wb + o * TILE, ldw, AA, rows);
    }
    mm_wait<0>(y);
    if (t < VT) {
      __syncwarp();
      frag_to_tile(AA, y);
      store_own_rows(ub + t * TILE, ldu, AA, rows);
    }
  }
}
