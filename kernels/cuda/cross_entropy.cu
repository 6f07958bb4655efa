// Cross entropy over a block of rows of logits, loss and gradient in one kernel: the second pass over a row reads it
// from L2. logits elem [rows, ld] become the gradient in place when `scale` is not null.
//   loss_r = log sum exp(logits_r) - logits_r[target],   dlogits = (softmax - onehot) * scale,  0 where target < 0
#include "vec.cuh"

constexpr int CE_THREADS = 512;

__device__ __forceinline__ void combine(float& m, float& s, float m2, float s2) {
  float n = fmaxf(m, m2);
  s = s * exp2f((m - n) * 1.4426950408889634f) + s2 * exp2f((m2 - n) * 1.4426950408889634f);
  m = n;
}

extern "C" __global__ void __launch_bounds__(CE_THREADS)
cross_entropy(elem* __restrict__ logits, long long ld, const int* __restrict__ targets, int vocab, const double* __restrict__ scale, float* __restrict__ loss) {
  __shared__ float sm[CE_THREADS / 32], ssum[CE_THREADS / 32];
  elem* row = logits + (long long)blockIdx.x * ld;
  const int target = targets[blockIdx.x];
  const float L2E = 1.4426950408889634f;
  if (target < 0) {
    if (threadIdx.x == 0) loss[blockIdx.x] = 0.f;
    if (scale) {
      Vec8 z;
#pragma unroll
      for (int j = 0; j < 8; ++j) z.v[j] = 0.f;
      for (int c = threadIdx.x * 8; c < vocab; c += CE_THREADS * 8) save8(row + c, z);
    }
    return;
  }
  float m = -3.0e38f, s = 0.f;
  for (int c = threadIdx.x * 8; c < vocab; c += CE_THREADS * 8) {
    Vec8 x = load8(row + c);
    float n = m;
#pragma unroll
    for (int j = 0; j < 8; ++j) n = fmaxf(n, x.v[j]);
    float a = 0.f;
#pragma unroll
    for (int j = 0; j < 8; ++j) a += exp2f((x.v[j] - n) * L2E);
    s = fmaf(s, exp2f((m - n) * L2E), a);
    m = n;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    float m2 = __shfl_xor_sync(0xffffffffu, m, o), s2 = __shfl_xor_sync(0xffffffffu, s, o);
    combine(m, s, m2, s2);
  }
  if ((threadIdx.x & 31) == 0) { sm[threadIdx.x >> 5] = m; ssum[threadIdx.x >> 5] = s; }
  __syncthreads();
  m = sm[0];
  s = ssum[0];
  for (int w = 1; w < CE_THREADS / 32; ++w) combine(m, s, sm[w], ssum[w]);
  const float lse = m + logf(s);
  if (threadIdx.x == 0) loss[blockIdx.x] = lse - to_f32(row[target]);
  if (!scale) return;
  __syncthreads();
  const float f = (float)*scale;
  for (int c = threadIdx.x * 8; c < vocab; c += CE_THREADS * 8) {
    Vec8 x = load8(row + c);
#pragma unroll
    for (int j = 0; j < 8; ++j) x.v[j] = (exp2f((x.v[j] - lse) * L2E) - (c + j == target ? 1.f : 0.f)) * f;
    save8(row + c, x);
  }
}

#if !defined(ELEM_F32) && __CUDA_ARCH__ >= 900
// The same with a row held in the shared memory of four blocks of a cluster, so that it is read once. Each block takes
// `slice` columns (a multiple of 8) and `slice` elements of dynamic shared memory. Grid (4 rows).
constexpr int CLUSTER = 4;

__device__ __forceinline__ float remote(const float* p, int rank) {
  unsigned a = static_cast<unsigned>(__cvta_generic_to_shared(p)), b;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(b) : "memory");
  return v;
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CE_THREADS, 3)
cross_entropy_cluster(elem* __restrict__ logits, long long ld, const int* __restrict__ targets, int vocab, int slice, const double* __restrict__ scale,
                      float* __restrict__ loss) {
  extern __shared__ __align__(16) elem held[];
  __shared__ float sm[CE_THREADS / 32], ssum[CE_THREADS / 32], mine[2];
  const int rank = blockIdx.x & (CLUSTER - 1), r = blockIdx.x / CLUSTER;
  const int target = targets[r], first = rank * slice, n = vocab - first < slice ? (vocab - first < 0 ? 0 : vocab - first) : slice;
  elem* row = logits + (long long)r * ld + first;
  const float L2E = 1.4426950408889634f;
  if (target < 0) {
    if (threadIdx.x == 0 && rank == 0) loss[r] = 0.f;
    if (scale)
      for (int c = threadIdx.x * 8; c < n; c += CE_THREADS * 8) *reinterpret_cast<uint4*>(row + c) = make_uint4(0, 0, 0, 0);
    return;  // all blocks of the cluster do
  }
  float m = -3.0e38f, s = 0.f;
#pragma unroll 4
  for (int c = threadIdx.x * 8; c < n; c += CE_THREADS * 8) {
    const uint4 raw = *reinterpret_cast<const uint4*>(row + c);
    *reinterpret_cast<uint4*>(held + c) = raw;
    const unsigned w[4] = {raw.x, raw.y, raw.z, raw.w};
    float x[8], top = m, a = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 f = unpack_bf16(w[j]);
      x[2 * j] = f.x;
      x[2 * j + 1] = f.y;
      top = fmaxf(top, fmaxf(f.x, f.y));
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) a += exp2_fast((x[j] - top) * L2E);
    s = fmaf(s, exp2_fast((m - top) * L2E), a);
    m = top;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    const float m2 = __shfl_xor_sync(0xffffffffu, m, o), s2 = __shfl_xor_sync(0xffffffffu, s, o);
    combine(m, s, m2, s2);
  }
  if ((threadIdx.x & 31) == 0) { sm[threadIdx.x >> 5] = m; ssum[threadIdx.x >> 5] = s; }
  __syncthreads();
  if (threadIdx.x == 0) {
    m = sm[0];
    s = ssum[0];
    for (int w = 1; w < CE_THREADS / 32; ++w) combine(m, s, sm[w], ssum[w]);
    mine[0] = m;
    mine[1] = s;
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  m = remote(&mine[0], 0);
  s = remote(&mine[1], 0);
#pragma unroll
  for (int b = 1; b < CLUSTER; ++b) combine(m, s, remote(&mine[0], b), remote(&mine[1], b));
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  const float lse = m + logf(s);
  const int at = target - first;
  if (threadIdx.x == 0 && at >= 0 && at < n) loss[r] = lse - to_f32(held[at]);
  if (scale) {
    const float f = (float)*scale, shift = lse * L2E;
#pragma unroll 4
    for (int c = threadIdx.x * 8; c < n; c += CE_THREADS * 8) {
      Vec8 x = load8(held + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) x.v[j] = (exp2_fast(fmaf(x.v[j], L2E, -shift)) - (c + j == at ? 1.f : 0.f)) * f;
      save8(row + c, x);
    }
  }
  // The others may still read this block's sums.
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif

// total += sum of the rows' losses in f64, fixed tree; one block of 256.
extern "C" __global__ void __launch_bounds__(256)
sum_losses(const float* __restrict__ loss, int rows, double* total) {
  __shared__ double s[256];
  double x = 0.0;
  for (int i = threadIdx.x; i < rows; i += 256) x += (double)loss[i];
  s[threadIdx.x] = x;
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) *total += s[0];
}
