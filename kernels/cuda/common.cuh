// Types and reductions shared by every kernel. Compiled by NVRTC without any CUDA header.
//
// `elem` is the storage type of activations: bf16, or float when ELEM_F32 is defined.
#pragma once

struct __align__(2) bf16 { unsigned short x; };

__device__ __forceinline__ float bf16_to_f32(bf16 v) { return __uint_as_float(static_cast<unsigned>(v.x) << 16); }
// Round to nearest even, as every other bf16 conversion here.
__device__ __forceinline__ bf16 f32_to_bf16(float f) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.x) : "f"(f));
  return r;
}
__device__ __forceinline__ unsigned pack_bf16(float lo, float hi) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ float2 unpack_bf16(unsigned v) { return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)); }

#ifdef ELEM_F32
typedef float elem;
__device__ __forceinline__ float to_f32(float v) { return v; }
__device__ __forceinline__ float from_f32(float v) { return v; }
__device__ __forceinline__ void store2(float* p, float a, float b) { p[0] = a; p[1] = b; }
#else
typedef bf16 elem;
__device__ __forceinline__ float to_f32(bf16 v) { return bf16_to_f32(v); }
__device__ __forceinline__ bf16 from_f32(float v) { return f32_to_bf16(v); }
__device__ __forceinline__ void store2(bf16* p, float a, float b) { *reinterpret_cast<unsigned*>(p) = pack_bf16(a, b); }
#endif

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
// 2^x and 1/x by the special-function unit: relative error below 2^-21, far under the rounding of what they feed.
__device__ __forceinline__ float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float rcp_fast(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
constexpr float LOG2E = 1.4426950408889634f;
__device__ __forceinline__ float sigmoidf(float x) { return rcp_fast(1.f + exp2_fast(-LOG2E * x)); }
