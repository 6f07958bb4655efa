// Block-level 64 x 64 tile products, the unit every chunk kernel is made of.
//
// A warpgroup of 128 threads (4 warps) makes a product; warp w of it owns rows 16 w .. 16 w + 15 of an accumulator tile. A
// block is one warpgroup, or as many as GROUPS says. A thread holds acc[8][4]: element (n, r) is row `acc_row(r)`, column `acc_col(n, r)`. With `elem` = bf16 products go through the
// tensor cores with fp32 accumulation: on sm_90a as wgmma, which reads its operands from shared memory by itself (a
// tile's traffic there, not arithmetic, is what bounds the chunk kernels), elsewhere as mma.sync. With ELEM_F32 defined
// the same fragment is filled by fp32 multiply-adds in a fixed order, so one kernel source serves both precisions.
//
// A bf16 tile in shared memory is 64 rows of 128 bytes whose 16-byte pieces are permuted by the row (the 128-byte swizzle
// of wgmma; free of bank conflicts for ldmatrix too) and begins at a multiple of 1024 bytes.
#pragma once
#include "common.cuh"

constexpr int TILE = 64;
#ifndef GROUPS
#define GROUPS 1
#endif
constexpr int THREADS = 128 * GROUPS;
#ifdef ELEM_F32
constexpr int TILE_ELEMS = TILE * 65;
__device__ __forceinline__ int tile_at(int r, int c) { return r * 65 + c; }
#else
constexpr int TILE_ELEMS = TILE * TILE;
__device__ __forceinline__ int tile_at(int r, int c) { return r * TILE + ((((c >> 3) ^ r) & 7) << 3) + (c & 7); }
#endif
#if !defined(ELEM_F32) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA 1
#endif

// The first tile in a block's dynamic shared memory, whose size has 1024 bytes of room for this.
__device__ __forceinline__ elem* first_tile(unsigned char* smem) {
  const unsigned a = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  return reinterpret_cast<elem*>(smem + ((1024 - (a & 1023)) & 1023));
}
// Barrier of the block after which products may read what its threads wrote into tiles.
__device__ __forceinline__ void tiles_sync() {
#ifdef WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
}

// Barrier of a warpgroup.
__device__ __forceinline__ void group_sync() {
#if GROUPS == 1
  __syncthreads();
#else
  if (threadIdx.x < 128) asm volatile("bar.sync 1, 128;" ::: "memory");
  else asm volatile("bar.sync 2, 128;" ::: "memory");
#endif
}

struct Frag {
  float v[8][4];
  __device__ __forceinline__ void zero() {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) v[n][r] = 0.f;
  }
};

__device__ __forceinline__ int group_warp() { return (threadIdx.x >> 5) & 3; }
__device__ __forceinline__ int acc_row(int r) { return group_warp() * 16 + ((threadIdx.x & 31) >> 2) + ((r >> 1) << 3); }
__device__ __forceinline__ int acc_col(int n, int r) { return n * 8 + ((threadIdx.x & 3) << 1) + (r & 1); }

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
// Columns 16 s .. 16 s + 15 of an accumulator, rounded, as the left operand of a product.
__device__ __forceinline__ void left_operand(unsigned (&a)[4], const Frag& x, int s) {
  a[0] = pack_bf16(x.v[2 * s][0], x.v[2 * s][1]);
  a[1] = pack_bf16(x.v[2 * s][2], x.v[2 * s][3]);
  a[2] = pack_bf16(x.v[2 * s + 1][0], x.v[2 * s + 1][1]);
  a[3] = pack_bf16(x.v[2 * s + 1][2], x.v[2 * s + 1][3]);
}
#endif

#ifdef WGMMA
// Operand descriptor: 128-byte swizzle, groups of eight rows 1024 bytes apart. Sixteen steps along the inner dimension are
// 32 bytes on where that dimension runs along the rows, two groups (2048 bytes) where it runs across them.
__device__ __forceinline__ unsigned long long descriptor(const elem* tile) {
  const unsigned a = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  return (1ull << 62) | (64ull << 32) | (1ull << 16) | ((a & 0x3ffff) >> 4);
}
#define ACC4(x, n) "+f"(x.v[n][0]), "+f"(x.v[n][1]), "+f"(x.v[n][2]), "+f"(x.v[n][3])
#define ACC(x) ACC4(x, 0), ACC4(x, 1), ACC4(x, 2), ACC4(x, 3), ACC4(x, 4), ACC4(x, 5), ACC4(x, 6), ACC4(x, 7)
#define ACC_REGS "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"

// The four steps of a product, under way until `mm_wait`; until then nobody may touch `acc`.
template <bool TA, bool TB>
__device__ __forceinline__ void mm_start(Frag& acc, const elem* A, const elem* B) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\n.reg .b32 one;\nmov.b32 one, 1;\nsetp.ne.b32 p, one, 0;\nwgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ACC_REGS ", %32, %33, p, 1, 1, %36, %37;\n"
      "add.s64 a, %32, %34;\nadd.s64 b, %33, %35;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ACC_REGS ", a, b, p, 1, 1, %36, %37;\n"
      "add.s64 a, a, %34;\nadd.s64 b, b, %35;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ACC_REGS ", a, b, p, 1, 1, %36, %37;\n"
      "add.s64 a, a, %34;\nadd.s64 b, b, %35;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ACC_REGS ", a, b, p, 1, 1, %36, %37;\n"
      "wgmma.commit_group.sync.aligned;\n}"
      : ACC(acc)
      : "l"(descriptor(A)), "l"(descriptor(B)), "n"(TA ? 128 : 2), "n"(TB ? 2 : 128), "n"(TA ? 1 : 0), "n"(TB ? 0 : 1)
      : "memory");
}
// Waits until at most `pending` of the products under way are left, the one of `acc` not among them.
template <int pending>
__device__ __forceinline__ void mm_wait(Frag& acc) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : ACC(acc) : "n"(pending) : "memory");
}
#else
template <bool TA, bool TB>
__device__ __forceinline__ void mm(Frag& acc, const elem* A, const elem* B);
template <bool TA, bool TB>
__device__ __forceinline__ void mm_start(Frag& acc, const elem* A, const elem* B) { mm<TA, TB>(acc, A, B); }
template <int pending>
__device__ __forceinline__ void mm_wait(Frag&) {}
#endif

// acc += op(A) op(B), 64 x 64 x 64.
// TA: A is stored [k][m] (else [m][k]). TB: B is stored [n][k] (else [k][n]).
template <bool TA, bool TB>
__device__ __forceinline__ void mm(Frag& acc, const elem* A, const elem* B) {
#if defined(ELEM_F32)
#pragma unroll 4
  for (int k = 0; k < TILE; ++k) {
    float a[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) { int m = acc_row(2 * h); a[h] = TA ? A[tile_at(k, m)] : A[tile_at(m, k)]; }
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        int col = acc_col(n, c);
        float b = TB ? B[tile_at(col, k)] : B[tile_at(k, col)];
        acc.v[n][c] = fmaf(a[0], b, acc.v[n][c]);
        acc.v[n][2 + c] = fmaf(a[1], b, acc.v[n][2 + c]);
      }
  }
#elif defined(WGMMA)
  mm_start<TA, TB>(acc, A, B);
  mm_wait<0>(acc);
#else
  const int lane = threadIdx.x & 31, warp = group_warp();
  const int r8 = lane & 7, q = lane >> 3;
#pragma unroll 2
  for (int k0 = 0; k0 < TILE; k0 += 16) {
    unsigned a[4];
    if (!TA) ldsm(a, A + tile_at(warp * 16 + r8 + (q & 1) * 8, k0 + (q >> 1) * 8));
    else ldsm_t(a, A + tile_at(k0 + r8 + (q >> 1) * 8, warp * 16 + (q & 1) * 8));
#pragma unroll
    for (int n0 = 0; n0 < 4; ++n0) {
      unsigned b[4];
      if (TB) ldsm(b, B + tile_at(n0 * 16 + r8 + (q >> 1) * 8, k0 + (q & 1) * 8));
      else ldsm_t(b, B + tile_at(k0 + r8 + (q & 1) * 8, n0 * 16 + (q >> 1) * 8));
      mma16816(acc.v[2 * n0], a, b[0], b[1]);
      mma16816(acc.v[2 * n0 + 1], a, b[2], b[3]);
    }
  }
#endif
}

// Writes an accumulator into a tile as `elem`.
__device__ __forceinline__ void frag_to_tile(elem* dst, const Frag& f) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) store2(dst + tile_at(acc_row(2 * h), acc_col(n, 0)), f.v[n][2 * h], f.v[n][2 * h + 1]);
}

// acc += X op(B) with X an accumulator, rounded to `elem`. Only in fp32 it passes through `scratch`, a tile that no product
// of another warp reads but one already begun here; all warps of the group call this together.
template <bool TB>
__device__ __forceinline__ void mm_of(Frag& acc, const Frag& X, const elem* B, elem* scratch) {
#if defined(ELEM_F32)
  group_sync();
  frag_to_tile(scratch, X);
  group_sync();
  mm<false, TB>(acc, scratch, B);
#elif defined(WGMMA)
  unsigned a[4][4];
#pragma unroll
  for (int s = 0; s < 4; ++s) left_operand(a[s], X, s);
  const unsigned long long b = descriptor(B);
#define STEP(s)                                                                                                            \
  asm volatile(                                                                                                            \
      "{\n.reg .pred p;\n.reg .b32 one;\nmov.b32 one, 1;\nsetp.ne.b32 p, one, 0;\n"                                        \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ACC_REGS ", {%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}"        \
      : ACC(acc)                                                                                                           \
      : "r"(a[s][0]), "r"(a[s][1]), "r"(a[s][2]), "r"(a[s][3]), "l"(b + s * (TB ? 2 : 128)), "n"(TB ? 0 : 1)               \
      : "memory")
#define LEFT(s) "+r"(a[s][0]), "+r"(a[s][1]), "+r"(a[s][2]), "+r"(a[s][3])
  asm volatile("wgmma.fence.sync.aligned;" : ACC(acc), LEFT(0), LEFT(1), LEFT(2), LEFT(3) : : "memory");
#undef LEFT
  STEP(0);
  STEP(1);
  STEP(2);
  STEP(3);
#undef STEP
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" : ACC(acc) : : "memory");
#else
  const int lane = threadIdx.x & 31, r8 = lane & 7, q = lane >> 3;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    unsigned a[4];
    left_operand(a, X, s);
#pragma unroll
    for (int n0 = 0; n0 < 4; ++n0) {
      unsigned b[4];
      if (TB) ldsm(b, B + tile_at(n0 * 16 + r8 + (q >> 1) * 8, s * 16 + (q & 1) * 8));
      else ldsm_t(b, B + tile_at(s * 16 + r8 + (q & 1) * 8, n0 * 16 + (q >> 1) * 8));
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
    dst[tile_at(r, c)] = r < rows ? src[r * stride + c] : 0.f;
  }
#else
#pragma unroll
  for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
    int r = i >> 3, c = (i & 7) * 8;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (r < rows) x = *reinterpret_cast<const uint4*>(src + r * stride + c);
    *reinterpret_cast<uint4*>(dst + tile_at(r, c)) = x;
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
    const unsigned d = static_cast<unsigned>(__cvta_generic_to_shared(dst + tile_at(r, c)));
    const int n = r < rows ? 16 : 0;  // the rest of the 16 bytes is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(d), "l"(src + (r < rows ? r : 0) * stride + c), "r"(n) : "memory");
  }
#endif
}
__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// A warp copies its own 16 rows of a tile to global memory, with the other sign if NEGATED; needs no block barrier when the
// warp wrote them itself.
template <bool NEGATED = false>
__device__ __forceinline__ void store_own_rows(elem* dst, long long stride, const elem* src, int rows) {
  const int lane = threadIdx.x & 31, first = group_warp() * 16;
  __syncwarp();
#ifdef ELEM_F32
  for (int i = lane; i < 16 * TILE; i += 32) {
    const int r = first + (i >> 6), c = i & 63;
    if (r < rows) dst[r * stride + c] = NEGATED ? -src[tile_at(r, c)] : src[tile_at(r, c)];
  }
#else
  constexpr unsigned SIGNS = NEGATED ? 0x80008000u : 0u;
#pragma unroll
  for (int i = lane; i < 16 * 8; i += 32) {
    const int r = first + (i >> 3), c = (i & 7) * 8;
    const uint4 x = *reinterpret_cast<const uint4*>(src + tile_at(r, c));
    if (r < rows) *reinterpret_cast<uint4*>(dst + r * stride + c) = make_uint4(x.x ^ SIGNS, x.y ^ SIGNS, x.z ^ SIGNS, x.w ^ SIGNS);
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
__device__ __forceinline__ float2 pair_of(const elem* tile, int n, int h) { return load2(tile + tile_at(acc_row(2 * h), acc_col(n, 0))); }

// Copies a tile to global memory, the first `rows` rows.
__device__ __forceinline__ void store_tile(elem* dst, long long stride, const elem* src, int rows) {
#ifdef ELEM_F32
  for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
    int r = i >> 6, c = i & 63;
    if (r < rows) dst[r * stride + c] = src[tile_at(r, c)];
  }
#else
#pragma unroll
  for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
    int r = i >> 3, c = (i & 7) * 8;
    if (r < rows) *reinterpret_cast<uint4*>(dst + r * stride + c) = *reinterpret_cast<const uint4*>(src + tile_at(r, c));
  }
#endif
}

// Reads a tile into an accumulator.
__device__ __forceinline__ void tile_to_frag(Frag& f, const elem* src) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 x = pair_of(src, n, h);
      f.v[n][2 * h] = x.x;
      f.v[n][2 * h + 1] = x.y;
    }
}

// Sum over a row of the accumulator tile: the four threads that share the row hold the result; fixed tree.
__device__ __forceinline__ float row_sum4(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  return x;
}
