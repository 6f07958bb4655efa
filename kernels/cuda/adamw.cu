// AdamW as torch's (decoupled decay, bias correction, epsilon outside the root), the clip coefficient applied and the
// bf16 copy of the new weight written in the same pass.
//   p *= 1 - lr wd;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr / bc1 * m / (sqrt(v) / sqrt(bc2) + eps)
// hyper (f64, device): {lr, step counted from 1}. Factors of scalars are formed in f64 and rounded once.
#include "vec.cuh"

extern "C" __global__ void __launch_bounds__(256)
adamw(float* p, const float* __restrict__ g, float* m, float* v, bf16* copy, const double* __restrict__ hyper, const double* __restrict__ coefficient,
      double beta1, double beta2, float eps, double weight_decay, long long n) {
  __shared__ float s[4];
  if (threadIdx.x == 0) {
    const double lr = hyper[0], t = hyper[1];
    s[0] = (float)(lr / (1.0 - pow(beta1, t)));
    s[1] = (float)(1.0 / sqrt(1.0 - pow(beta2, t)));
    s[2] = (float)(1.0 - lr * weight_decay);
    s[3] = (float)*coefficient;
  }
  __syncthreads();
  const float step = s[0], rbc2 = s[1], keep = s[2], clip = s[3];
  const float b1 = (float)beta1, b2 = (float)beta2, c1 = (float)(1.0 - beta1), c2 = (float)(1.0 - beta2);
  const long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * 8;
  if (i >= n) return;
  const int k = n - i < 8 ? (int)(n - i) : 8;
  Vec8 gg, mm, vv, pp;
  if (k == 8) {
    gg = load8(g + i); mm = load8(m + i); vv = load8(v + i); pp = load8(p + i);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < k) { gg.v[j] = g[i + j]; mm.v[j] = m[i + j]; vv.v[j] = v[i + j]; pp.v[j] = p[i + j]; }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float x = gg.v[j] * clip;
    mm.v[j] = fmaf(b1, mm.v[j], c1 * x);
    vv.v[j] = fmaf(b2, vv.v[j], c2 * x * x);
    pp.v[j] = pp.v[j] * keep - step * mm.v[j] / (sqrtf(vv.v[j]) * rbc2 + eps);
  }
  if (k == 8) {
    save8(m + i, mm); save8(v + i, vv); save8(p + i, pp);
    if (copy) save8(copy + i, pp);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < k) {
        m[i + j] = mm.v[j]; v[i + j] = vv.v[j]; p[i + j] = pp.v[j];
        if (copy) copy[i + j] = f32_to_bf16(pp.v[j]);
      }
  }
}
