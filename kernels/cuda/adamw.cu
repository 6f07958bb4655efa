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
// block has; copy may be null. A block takes 2048 values, a thread four and the four 1024 further on: a warp's accesses are
// 512 bytes in a row, so that every sector is read and written whole.
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

__device__ __forceinline__ void four(float (&to)[4], const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  to[0] = a.x; to[1] = a.y; to[2] = a.z; to[3] = a.w;
}
__device__ __forceinline__ void four(float* to, const float (&from)[4]) { *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]); }

extern "C" __global__ void __launch_bounds__(256)
adamw(const __grid_constant__ Ranges r, const double* __restrict__ hyper, const double* __restrict__ coefficient, const float* __restrict__ factors,
      double beta1, double beta2, float eps) {
  int at = 0;
#pragma unroll
  for (int k = RANGES / 2; k > 0; k >>= 1)
    if ((long long)blockIdx.x >= r.first[at + k]) at += k;
  const long long n = r.n[at], first = (blockIdx.x - r.first[at]) * 2048 + threadIdx.x * 4;
  if (first >= n) return;
  float *p = r.p[at], *m = r.m[at], *v = r.v[at];
  const float* g = r.g[at];
  bf16* copy = r.copy[at];
  float gg[2][4], mm[2][4], vv[2][4], pp[2][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const long long i = first + h * 1024;
    if (i + 4 <= n) {
      four(gg[h], g + i); four(mm[h], m + i); four(vv[h], v + i); four(pp[h], p + i);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool in = i + j < n;
        gg[h][j] = in ? g[i + j] : 0.f; mm[h][j] = in ? m[i + j] : 0.f; vv[h][j] = in ? v[i + j] : 0.f; pp[h][j] = in ? p[i + j] : 0.f;
      }
    }
  }
  const float step = factors[0], rbc2 = factors[1], keep = (float)(1.0 - hyper[0] * r.decay[at]), clip = (float)*coefficient;
  const float b1 = (float)beta1, b2 = (float)beta2, c1 = (float)(1.0 - beta1), c2 = (float)(1.0 - beta2);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const long long i = first + h * 1024;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float x = gg[h][j] * clip;
      mm[h][j] = fmaf(b1, mm[h][j], c1 * x);
      vv[h][j] = fmaf(b2, vv[h][j], c2 * x * x);
      pp[h][j] = pp[h][j] * keep - step * mm[h][j] / (sqrtf(vv[h][j]) * rbc2 + eps);
    }
    if (i + 4 <= n) {
      four(m + i, mm[h]); four(v + i, vv[h]); four(p + i, pp[h]);
      if (copy) *reinterpret_cast<uint2*>(copy + i) = make_uint2(pack_bf16(pp[h][0], pp[h][1]), pack_bf16(pp[h][2], pp[h][3]));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (i + j < n) {
          m[i + j] = mm[h][j]; v[i + j] = vv[h][j]; p[i + j] = pp[h][j];
          if (copy) copy[i + j] = f32_to_bf16(pp[h][j]);
        }
    }
  }
}
