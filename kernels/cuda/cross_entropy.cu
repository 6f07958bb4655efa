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
