// SwiGLU over the fused product [gate | up]: y = silu(gate) up, forward and backward.
// gu elem [rows, 2 F]; y elem [rows, F]. F a multiple of 8.
#include "vec.cuh"

extern "C" __global__ void __launch_bounds__(256)
swiglu(const elem* __restrict__ gu, elem* __restrict__ y, long long n, int F) {
  const long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * 8;
  if (i >= n) return;
  const long long row = i / F, c = i - row * F;
  Vec8 g = load8(gu + row * 2 * F + c), u = load8(gu + row * 2 * F + F + c);
#pragma unroll
  for (int j = 0; j < 8; ++j) u.v[j] *= g.v[j] * sigmoidf(g.v[j]);
  save8(y + i, u);
}

// dgu elem [rows, 2 F]; y, the activation again, elem [rows, F], may be null.
extern "C" __global__ void __launch_bounds__(256)
swiglu_backward(const elem* __restrict__ gu, const elem* __restrict__ dy, elem* __restrict__ dgu, elem* __restrict__ y, long long n, int F) {
  const long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * 8;
  if (i >= n) return;
  const long long row = i / F, c = i - row * F;
  Vec8 g = load8(gu + row * 2 * F + c), u = load8(gu + row * 2 * F + F + c), d = load8(dy + i);
  if (y) {
    Vec8 a;
#pragma unroll
    for (int j = 0; j < 8; ++j) a.v[j] = u.v[j] * (g.v[j] * sigmoidf(g.v[j]));
    save8(y + i, a);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float sg = sigmoidf(g.v[j]), si = g.v[j] * sg;
    float du = d.v[j] * si;
    g.v[j] = d.v[j] * u.v[j] * sg * (1.f + g.v[j] * (1.f - sg));
    u.v[j] = du;
  }
  save8(dgu + row * 2 * F + c, g);
  save8(dgu + row * 2 * F + F + c, u);
}
