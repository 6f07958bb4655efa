// AdamW as torch's (decoupled decay, bias correction, epsilon outside the root), the clip coefficient applied and the
// bf16 copy of the new weight written in the same pass.
//   p *= 1 - lr wd;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr / bc1 * m / (sqrt(v) / sqrt(bc2) + eps)
// hyper (f64, device): {lr, step counted from 1}. Factors of scalars are formed in f64 and rounded once.
#include "vec.cuh"

// factors: {lr / bc1, 1 / sqrt(bc2)}. One thread.
extern "C" __global__ void adamw_factors(const double* __restrict__ hyper, double beta1, double beta2, float* __restrict__ factors) {
  const double lr = hyper[0], t = hyper[1];
  factors[0] = (float)(lr / (1.0 - pow(beta1, t)));
  factors[1] = (float)(1.0 / sqrt(1.0 - pow(beta2, t)));
}

// A list of ranges of tensors: `first` holds the first block of each, ascending, past the end of the list a number no
// block has; copy may be null. A block takes 2048 values.
constexpr int RANGES = 32;
struct Ranges {
  float* p[RANGES];
  const float* g[RANGES];
  float* m[RANGES];
  float* v[RANGES];
  bf16* copy[RANGES];
  double decay[RANGES];
  long long n[RANGES];
  long long first[RANGES];
};

extern "C" __global__ void __launch_bounds__(256)
adamw(const __grid_constant__ Ranges r, const double* __restrict__ hyper, const double* __restrict__ coefficient, const float* __restrict__ factors,
      double beta1, double beta2, float eps) {
  int at = 0;
#pragma unroll
  for (int k = RANGES / 2; k > 0; k >>= 1)
    if ((long long)blockIdx.x >= r.first[at + k]) at += k;
  const long long n = r.n[at], i = ((blockIdx.x - r.first[at]) * 256 + threadIdx.x) * 8;
  if (i >= n) return;
  float *p = r.p[at], *m = r.m[at], *v = r.v[at];
  const float* g = r.g[at];
  bf16* copy = r.copy[at];
  const float step = factors[0], rbc2 = factors[1], keep = (float)(1.0 - hyper[0] * r.decay[at]), clip = (float)*coefficient;
  const float b1 = (float)beta1, b2 = (float)beta2, c1 = (float)(1.0 - beta1), c2 = (float)(1.0 - beta2);
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
