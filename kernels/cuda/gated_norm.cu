// Gated RMSNorm per value head: y = o rstd w silu(z), rstd = (mean o^2 + eps)^-1/2, forward and backward; without
// a gate (z null) y = o rstd w. With SIGMOID_GATE the gate's activation is sigmoid(z).
// Compile-time: VD. o, y elem [rows, HV, VD]; z elem, columns of a matrix with row stride ldz; rstd fp32 [rows, HV].
#include "vec.cuh"

constexpr int LANES = VD / 8 < 32 ? VD / 8 : 32;
constexpr int VECS = VD / (8 * LANES);
constexpr int HEADS_PER_WARP = 32 / LANES;

// The gate's activation and its derivative, from z and sigmoid(z).
__device__ __forceinline__ float activation(float z, float sg) {
#ifdef SIGMOID_GATE
  return sg;
#else
  return z * sg;
#endif
}
__device__ __forceinline__ float slope(float z, float sg) {
#ifdef SIGMOID_GATE
  return sg * (1.f - sg);
#else
  return sg * (1.f + z * (1.f - sg));
#endif
}

extern "C" __global__ void __launch_bounds__(256)
gated_rms_norm(const elem* __restrict__ o, const elem* __restrict__ z, long long ldz, const float* __restrict__ w, elem* __restrict__ y, float* __restrict__ rstd, long long heads, int HV, float eps) {
  const int lane = threadIdx.x & (LANES - 1);
  const long long head = ((long long)blockIdx.x * 256 + threadIdx.x) / LANES;
  const bool on = head < heads;
  const long long at = (on ? head : 0) * VD, row = (on ? head : 0) / HV, zat = row * ldz + ((on ? head : 0) - row * HV) * VD;
  Vec8 x[VECS];
  float ss = 0.f;
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    x[i] = load8(o + at + (i * LANES + lane) * 8);
#pragma unroll
    for (int j = 0; j < 8; ++j) ss = fmaf(x[i].v[j], x[i].v[j], ss);
  }
  const float r = rsqrtf(group_sum<LANES>(ss) * (1.f / VD) + eps);
  if (!on) return;
  if (lane == 0) rstd[head] = r;
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    const int c = (i * LANES + lane) * 8;
    Vec8 ww = load8(w + c);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[i].v[j] = x[i].v[j] * r * ww.v[j];
    if (z) {
      Vec8 g = load8(z + zat + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i].v[j] *= activation(g.v[j], sigmoidf(g.v[j]));
    }
    save8(y + at + c, x[i]);
  }
}

// Grid-stride over blocks of heads; dw partial sums [blocks, VD]. do elem, dz elem with row stride lddz. y, if given: the
// forward kernel's output again, in its bits.
extern "C" __global__ void __launch_bounds__(256)
gated_rms_norm_backward(const elem* __restrict__ o, const elem* __restrict__ z, long long ldz, const float* __restrict__ w, const float* __restrict__ rstd,
                        const elem* __restrict__ dy, elem* __restrict__ dout, elem* __restrict__ dz, long long lddz, elem* __restrict__ y, float* __restrict__ dw_part, long long heads, int HV,
                        int heads_per_block) {
  __shared__ float part[8 * HEADS_PER_WARP][VD];
  const int lane = threadIdx.x & (LANES - 1);
  Vec8 dw[VECS];
#pragma unroll
  for (int i = 0; i < VECS; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) dw[i].v[j] = 0.f;
  for (int k = threadIdx.x / LANES; k < heads_per_block; k += 256 / LANES) {
    const long long head = (long long)blockIdx.x * heads_per_block + k;
    const bool on = head < heads;
    const long long at = (on ? head : 0) * VD, row = (on ? head : 0) / HV, col = ((on ? head : 0) - row * HV) * VD;
    Vec8 x[VECS], g[VECS], d[VECS];
#pragma unroll
    for (int i = 0; i < VECS; ++i) {
      const int c = (i * LANES + lane) * 8;
      x[i] = load8(o + at + c);
      if (z) g[i] = load8(z + row * ldz + col + c);
      d[i] = load8(dy + at + c);
    }
    const float r = rstd[on ? head : 0];
    float dot = 0.f;
#pragma unroll
    for (int i = 0; i < VECS; ++i) {
      Vec8 ww = load8(w + (i * LANES + lane) * 8), again;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float xh = x[i].v[j] * r, t = d[i].v[j] * xh;
        float si = 1.f;
        again.v[j] = xh * ww.v[j];
        if (z) {
          const float sg = sigmoidf(g[i].v[j]);
          si = activation(g[i].v[j], sg);
          g[i].v[j] = t * ww.v[j] * slope(g[i].v[j], sg);
          again.v[j] *= si;
        }
        if (on) dw[i].v[j] = fmaf(t, si, dw[i].v[j]);
        d[i].v[j] *= ww.v[j] * si;
        x[i].v[j] = xh;
        dot = fmaf(d[i].v[j], xh, dot);
      }
      if (y && on) save8(y + at + (i * LANES + lane) * 8, again);
    }
    dot = group_sum<LANES>(dot) * (1.f / VD);
    if (on)
#pragma unroll
      for (int i = 0; i < VECS; ++i) {
        const int c = (i * LANES + lane) * 8;
        if (z) save8(dz + row * lddz + col + c, g[i]);
#pragma unroll
        for (int j = 0; j < 8; ++j) d[i].v[j] = r * (d[i].v[j] - x[i].v[j] * dot);
        save8(dout + at + c, d[i]);
      }
  }
#pragma unroll
  for (int i = 0; i < VECS; ++i) save8(&part[threadIdx.x / LANES][(i * LANES + lane) * 8], dw[i]);
  __syncthreads();
  for (int c = threadIdx.x; c < VD; c += 256) {
    float s = 0.f;
    for (int k = 0; k < 256 / LANES; ++k) s += part[k][c];
    dw_part[(long long)blockIdx.x * VD + c] = s;
  }
}
