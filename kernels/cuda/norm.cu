// Residual add + RMSNorm, forward and backward. One warp a row, the row in registers.
//   x += branch, += second;  y = x rstd w,  rstd = (mean x^2 + eps)^-1/2
// Compile-time: D, the hidden size (a multiple of 8). x and its gradient are `resid` (fp32, or elem with
// RESID_ELEM); branch, y and their gradients are elem; weights fp32.
#include "vec.cuh"
#ifdef RESID_ELEM
typedef elem resid;
#else
typedef float resid;
#endif

constexpr int WARPS = 8, BACKWARD_WARPS = 4;
constexpr int VECS = (D + 255) / 256;

extern "C" __global__ void __launch_bounds__(WARPS * 32)
add_rms_norm(const resid* x, const elem* branch, const elem* second, const float* __restrict__ w, resid* xout, elem* __restrict__ y, float* __restrict__ rstd_out, int rows,
             float eps) {
  const int lane = threadIdx.x & 31;
  const long long row = (long long)blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (row >= rows) return;
  Vec8 v[VECS];
  float ss = 0.f;
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    int c = i * 256 + lane * 8;
    if (c < D) {
      v[i] = load8(x + row * D + c);
      if (branch) {
        Vec8 b = load8(branch + row * D + c);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[i].v[j] += b.v[j];
      }
      if (second) {
        Vec8 b = load8(second + row * D + c);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[i].v[j] += b.v[j];
      }
      if (xout) save8(xout + row * D + c, v[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) ss = fmaf(v[i].v[j], v[i].v[j], ss);
    }
  }
  const float r = rsqrtf(warp_sum(ss) * (1.f / D) + eps);
  if (lane == 0) rstd_out[row] = r;
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    int c = i * 256 + lane * 8;
    if (c < D) {
      Vec8 g = load8(w + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[i].v[j] = v[i].v[j] * r * g.v[j];
      save8(y + row * D + c, v[i]);
    }
  }
}

// dx = dxin + rstd (w dy - xhat mean(w dy xhat));  dbranch = dx as elem;  dw partial sums per block of rows.
// The stream is x, plus branch where that is given (a sum that was not kept). dxin may be null (0). y, if given: the
// forward kernel's output again, in its bits.
extern "C" __global__ void __launch_bounds__(BACKWARD_WARPS * 32, D <= 1024 ? 3 : 1)
rms_norm_backward(const elem* __restrict__ dy, const resid* __restrict__ x, const elem* __restrict__ branch, const float* __restrict__ rstd,
                  const float* __restrict__ w, const resid* dxin, resid* dx, elem* __restrict__ dbranch, elem* __restrict__ y, float* __restrict__ dw_part, int rows, int rows_per_block) {
  // One slab of 256 columns at a time: room that does not grow with D.
  __shared__ __align__(16) float part[BACKWARD_WARPS][256];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  Vec8 dw[VECS];
#pragma unroll
  for (int i = 0; i < VECS; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) dw[i].v[j] = 0.f;
  const long long first = (long long)blockIdx.x * rows_per_block;
  for (int k = warp; k < rows_per_block; k += BACKWARD_WARPS) {
    const long long row = first + k;
    if (row >= rows) break;
    const float r = rstd[row];
    Vec8 h[VECS], g[VECS];
    float dot = 0.f;
#pragma unroll
    for (int i = 0; i < VECS; ++i) {
      int c = i * 256 + lane * 8;
      if (c < D) {
        h[i] = load8(x + row * D + c);
        g[i] = load8(dy + row * D + c);
        Vec8 ww = load8(w + c);
        if (branch) {
          Vec8 b = load8(branch + row * D + c);
#pragma unroll
          for (int j = 0; j < 8; ++j) h[i].v[j] += b.v[j];
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) h[i].v[j] *= r;
        if (y) {
          Vec8 o;
#pragma unroll
          for (int j = 0; j < 8; ++j) o.v[j] = h[i].v[j] * ww.v[j];
          save8(y + row * D + c, o);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          dw[i].v[j] = fmaf(g[i].v[j], h[i].v[j], dw[i].v[j]);
          g[i].v[j] *= ww.v[j];
          dot = fmaf(g[i].v[j], h[i].v[j], dot);
        }
      }
    }
    dot = warp_sum(dot) * (1.f / D);
#pragma unroll
    for (int i = 0; i < VECS; ++i) {
      int c = i * 256 + lane * 8;
      if (c < D) {
        Vec8 o;
#pragma unroll
        for (int j = 0; j < 8; ++j) o.v[j] = r * (g[i].v[j] - h[i].v[j] * dot);
        if (dxin) {
          Vec8 b = load8(dxin + row * D + c);
#pragma unroll
          for (int j = 0; j < 8; ++j) o.v[j] += b.v[j];
        }
        save8(dx + row * D + c, o);
        if (dbranch) save8(dbranch + row * D + c, o);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    save8(&part[warp][lane * 8], dw[i]);
    __syncthreads();
    for (int t = threadIdx.x; t < 256 && i * 256 + t < D; t += BACKWARD_WARPS * 32) {
      float s = 0.f;
#pragma unroll
      for (int k = 0; k < BACKWARD_WARPS; ++k) s += part[k][t];
      dw_part[(long long)blockIdx.x * D + i * 256 + t] = s;
    }
    __syncthreads();
  }
}
