// Eight consecutive elements a thread: the unit of the elementwise kernels (16 bytes of bf16).
#pragma once
#include "common.cuh"

struct Vec8 { float v[8]; };

__device__ __forceinline__ Vec8 load8(const bf16* p) {
  uint4 x = *reinterpret_cast<const uint4*>(p);
  Vec8 r;
  const unsigned w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) { float2 f = unpack_bf16(w[i]); r.v[2 * i] = f.x; r.v[2 * i + 1] = f.y; }
  return r;
}
__device__ __forceinline__ Vec8 load8(const float* p) {
  float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  return Vec8{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ void save8(bf16* p, const Vec8& x) {
  *reinterpret_cast<uint4*>(p) = make_uint4(pack_bf16(x.v[0], x.v[1]), pack_bf16(x.v[2], x.v[3]), pack_bf16(x.v[4], x.v[5]), pack_bf16(x.v[6], x.v[7]));
}
__device__ __forceinline__ void save8(float* p, const Vec8& x) {
  reinterpret_cast<float4*>(p)[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}
// Sum over `width` neighbouring lanes (a power of two), fixed tree; every lane gets it.
template <int width>
__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int o = width / 2; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
