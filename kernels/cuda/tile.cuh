// Block-level 64 x 64 tile products, the unit every chunk kernel is made of.
//
// A block has 4 WARPS_N warps: each owns 16 rows and 64 / WARPS_N columns of an accumulator tile. WARPS_N = 2 doubles
// the warps that hide each other's latency at half the registers a thread; 1 loads less. A thread holds
// acc[NT][4]: element (nt, r) is row `acc_row(r)`, column `acc_col(nt, r)`. With `elem` = bf16 products go
// through the tensor cores (mma.sync m16n8k16, fp32 accumulate); with ELEM_F32 defined the same fragment is
// filled by fp32 multiply-adds in a fixed order, so one kernel source serves both precisions.
//
// Tiles in shared memory are [64][LD]; the padding makes ldmatrix (16 bytes a row) free of bank conflicts.
#pragma once
#include "common.cuh"

constexpr int TILE = 64;
#ifdef ELEM_F32
constexpr int LD = 65;
#else
constexpr int LD = 72;
#endif
constexpr int TILE_ELEMS = TILE * LD;
#ifndef WARPS_N
#define WARPS_N 1
#endif
#ifndef MM_UNROLL
#define MM_UNROLL 4  // steps of 16 of a product that are unrolled; fewer hold fewer registers
#endif
constexpr int THREADS = 128 * WARPS_N;
constexpr int NT = 8 / WARPS_N;  // accumulator tiles of 8 columns a warp owns

struct Frag {
  float v[NT][4];
  __device__ __forceinline__ void zero() {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) v[n][r] = 0.f;
  }
};

__device__ __forceinline__ int row_warp() { return (threadIdx.x >> 5) & 3; }
__device__ __forceinline__ int first_col() { return WARPS_N == 1 ? 0 : (threadIdx.x >> 7) * (TILE / WARPS_N); }
__device__ __forceinline__ int acc_row(int r) { return row_warp() * 16 + ((threadIdx.x & 31) >> 2) + ((r >> 1) << 3); }
__device__ __forceinline__ int acc_col(int n, int r) { return first_col() + n * 8 + ((threadIdx.x & 3) << 1) + (r & 1); }
// Barrier of the warps that share 16 rows of a tile.
__device__ __forceinline__ void rows_sync() {
#if WARPS_N == 1
  __syncwarp();
#else
  // Constant numbers: with a number in a register a block would claim all 16 barriers.
  switch (row_warp()) {
    case 0: asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS_N) : "memory"); break;
    case 1: asm volatile("bar.sync 2, %0;" ::"n"(32 * WARPS_N) : "memory"); break;
    case 2: asm volatile("bar.sync 3, %0;" ::"n"(32 * WARPS_N) : "memory"); break;
    default: asm volatile("bar.sync 4, %0;" ::"n"(32 * WARPS_N) : "memory"); break;
  }
#endif
}

#ifndef ELEM_F32
__device__ __forceinline__ void ldsm(unsigned (&d)[4], const elem* p) {
  unsigned a = static_cast<unsigned>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a));
}
__device__ __forceinline__ void ldsm_t(unsigned (&d)[4], const elem* p) {
  unsigned a = static_cast<unsigned>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a));
}
__device__ __forceinline__ void mma16816(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// acc += op(A) op(B), 64 x 64 x 64.
// TA: A is stored [k][m] (else [m][k]). TB: B is stored [n][k] (else [k][n]). LOWER: A is zero in the blocks of 16 above
// its diagonal, which are not read.
template <bool TA, bool TB, bool LOWER = false>
__device__ __forceinline__ void mm(Frag& acc, const elem* A, const elem* B) {
#ifdef ELEM_F32
#pragma unroll 4
  for (int k = 0; k < (LOWER ? 16 * (row_warp() + 1) : TILE); ++k) {
    float a[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) { int m = acc_row(2 * h); a[h] = TA ? A[k * LD + m] : A[m * LD + k]; }
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        int col = acc_col(n, c);
        float b = TB ? B[col * LD + k] : B[k * LD + col];
        acc.v[n][c] = fmaf(a[0], b, acc.v[n][c]);
        acc.v[n][2 + c] = fmaf(a[1], b, acc.v[n][2 + c]);
      }
  }
#else
  const int lane = threadIdx.x & 31, warp = row_warp(), c0 = first_col();
  const int r8 = lane & 7, q = lane >> 3;
#pragma unroll MM_UNROLL
  for (int k0 = 0; k0 < TILE; k0 += 16) {
    if (LOWER && k0 > warp * 16) break;
    unsigned a[4];
    if (!TA) ldsm(a, A + (warp * 16 + r8 + (q & 1) * 8) * LD + k0 + (q >> 1) * 8);
    else ldsm_t(a, A + (k0 + r8 + (q >> 1) * 8) * LD + warp * 16 + (q & 1) * 8);
#pragma unroll
    for (int n0 = 0; n0 < NT / 2; ++n0) {
      unsigned b[4];
      if (TB) ldsm(b, B + (c0 + n0 * 16 + r8 + (q >> 1) * 8) * LD + k0 + (q & 1) * 8);
      else ldsm_t(b, B + (k0 + r8 + (q & 1) * 8) * LD + c0 + n0 * 16 + (q >> 1) * 8);
      mma16816(acc.v[2 * n0], a, b[0], b[1]);
      mma16816(acc.v[2 * n0 + 1], a, b[2], b[3]);
    }
  }
#endif
}

// Copies a [rows <= 64][64] block of global memory (row stride `stride` elements) into a tile; rows past `rows`
// are zero. The address of every row must be 16-byte aligned for bf16.
__device__ __forceinline__ void load_tile(elem* dst, const elem* src, long long stride, int rows) {
#ifdef ELEM_F32
  for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
    int r = i >> 6, c = i & 63;
    dst[r * LD + c] = r < rows ? src[r * stride + c] : 0.f;
  }
#else
#pragma unroll
  for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
    int r = i >> 3, c = (i & 7) * 8;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (r < rows) x = *reinterpret_cast<const uint4*>(src + r * stride + c);
    *reinterpret_cast<uint4*>(dst + r * LD + c) = x;
  }
#endif
}

// The same through the asynchronous copy unit: no registers in between, done after `async_wait` and a barrier.
__device__ __forceinline__ void load_tile_async(elem* dst, const elem* src, long long stride, int rows) {
#ifdef ELEM_F32
  load_tile(dst, src, stride, rows);
#else
#pragma unroll
  for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
    const int r = i >> 3, c = (i & 7) * 8;
    const unsigned d = static_cast<unsigned>(__cvta_generic_to_shared(dst + r * LD + c));
    const int n = r < rows ? 16 : 0;  // the rest of the 16 bytes is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(d), "l"(src + (r < rows ? r : 0) * stride + c), "r"(n));
  }
#endif
}
__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// A warp copies its own part of a tile (16 rows, 64 / WARPS_N columns) to global memory; needs no block barrier when the
// warp wrote it itself.
__device__ __forceinline__ void store_own(elem* dst, long long stride, const elem* src, int rows) {
  const int lane = threadIdx.x & 31, first = row_warp() * 16, c0 = first_col();
  constexpr int W = TILE / WARPS_N;
  __syncwarp();
#ifdef ELEM_F32
  for (int i = lane; i < 16 * W; i += 32) {
    const int r = first + i / W, c = c0 + i % W;
    if (r < rows) dst[r * stride + c] = src[r * LD + c];
  }
#else
#pragma unroll
  for (int i = lane; i < 16 * W / 8; i += 32) {
    const int r = first + i / (W / 8), c = c0 + i % (W / 8) * 8;
    if (r < rows) *reinterpret_cast<uint4*>(dst + r * stride + c) = *reinterpret_cast<const uint4*>(src + r * LD + c);
  }
#endif
}

// Two neighbouring elements of a tile.
__device__ __forceinline__ float2 load2(const elem* p) {
#ifdef ELEM_F32
  return make_float2(p[0], p[1]);
#else
  return unpack_bf16(*reinterpret_cast<const unsigned*>(p));
#endif
}
// The pair (row of h, columns of n) of an accumulator out of a tile.
__device__ __forceinline__ float2 pair_of(const elem* tile, int n, int h) { return load2(tile + acc_row(2 * h) * LD + acc_col(n, 0)); }

// Copies a tile to global memory, the first `rows` rows.
__device__ __forceinline__ void store_tile(elem* dst, long long stride, const elem* src, int rows) {
#ifdef ELEM_F32
  for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
    int r = i >> 6, c = i & 63;
    if (r < rows) dst[r * stride + c] = src[r * LD + c];
  }
#else
#pragma unroll
  for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
    int r = i >> 3, c = (i & 7) * 8;
    if (r < rows) *reinterpret_cast<uint4*>(dst + r * stride + c) = *reinterpret_cast<const uint4*>(src + r * LD + c);
  }
#endif
}

// Writes an accumulator into a tile as `elem`.
__device__ __forceinline__ void frag_to_tile(elem* dst, const Frag& f) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) store2(dst + acc_row(2 * h) * LD + acc_col(n, 0), f.v[n][2 * h], f.v[n][2 * h + 1]);
}

// Reads a tile into an accumulator.
__device__ __forceinline__ void tile_to_frag(Frag& f, const elem* src) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 x = pair_of(src, n, h);
      f.v[n][2 * h] = x.x;
      f.v[n][2 * h + 1] = x.y;
    }
}

// Sum over a row of a warp's part of the accumulator tile: the four threads that share the row hold the result; fixed
// tree.
__device__ __forceinline__ float row_sum4(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  return x;
}
