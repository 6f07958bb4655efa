// Gates of the delta rule: g = -exp(A_log) softplus(a + dt_bias), beta = beta_scale sigmoid(b), and their gradients.
// a, b: columns of an elem matrix with row stride ld; g, beta fp32 [rows, HV]. One thread a value in the forward pass;
// in the backward pass a block owns a run of rows, so that its partial sums of dA_log and ddt_bias have a fixed order.
#include "common.cuh"

// As torch.nn.functional.softplus: the identity above 20.
__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

extern "C" __global__ void __launch_bounds__(256)
gates(const elem* __restrict__ a, const elem* __restrict__ b, long long lda, long long ldb, const float* __restrict__ A_log, const float* __restrict__ dt_bias,
      float* __restrict__ g, float* __restrict__ beta, float beta_scale, long long n, int HV) {
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  const long long row = i / HV;
  const int hv = (int)(i - row * HV);
  g[i] = -expf(A_log[hv]) * softplus(to_f32(a[row * lda + hv]) + dt_bias[hv]);
  beta[i] = beta_scale * sigmoidf(to_f32(b[row * ldb + hv]));
}

// part [blocks, 2, HV]: dA_log, then ddt_bias. A warp a head, lanes over the block's rows.
extern "C" __global__ void __launch_bounds__(256)
gates_backward(const elem* __restrict__ a, long long lda, const float* __restrict__ A_log, const float* __restrict__ dt_bias, const float* __restrict__ g,
               const float* __restrict__ beta, const float* __restrict__ dg, const float* __restrict__ dbeta, elem* __restrict__ da, long long ldda,
               elem* __restrict__ db, long long lddb, float* __restrict__ part, float beta_scale, int rows, int HV, int run) {
  const int lane = threadIdx.x & 31, t0 = blockIdx.x * run, t1 = t0 + run < rows ? t0 + run : rows;
  for (int hv = threadIdx.x >> 5; hv < HV; hv += 8) {
    const float na = -expf(A_log[hv]), dt = dt_bias[hv];
    float sA = 0.f, sD = 0.f;
    for (int t = t0 + lane; t < t1; t += 32) {
      const long long at = (long long)t * HV + hv;
      const float d = dg[at], dx = d * na * sigmoidf(to_f32(a[t * lda + hv]) + dt), be = beta[at];
      sA = fmaf(d, g[at], sA);
      sD += dx;
      da[t * ldda + hv] = from_f32(dx);
      db[t * lddb + hv] = from_f32(dbeta[at] * be * (1.f - be / beta_scale));
    }
    sA = warp_sum(sA);
    sD = warp_sum(sD);
    if (lane == 0) {
      part[((long long)blockIdx.x * 2) * HV + hv] = sA;
      part[((long long)blockIdx.x * 2 + 1) * HV + hv] = sD;
    }
  }
}
