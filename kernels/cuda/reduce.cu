// Second pass of every parameter-gradient reduction, and the global norm: fixed trees, no atomics.
// Also the elementwise odds and ends of a step: adding a gradient, bf16 copies of weights.
#include "vec.cuh"

// out[c] += sum over p of part[p, c], p in ascending order within four interleaved chains. One block of 128
// threads for 32 columns: four threads a column.
extern "C" __global__ void __launch_bounds__(128)
sum_partials(const float* __restrict__ part, int parts, int columns, float* out) {
  __shared__ float s[4][32];
  const int lane = threadIdx.x & 31, chain = threadIdx.x >> 5, c = blockIdx.x * 32 + lane;
  float x = 0.f;
  if (c < columns)
    for (int p = chain; p < parts; p += 4) x += part[(long long)p * columns + c];
  s[chain][lane] = x;
  __syncthreads();
  if (chain == 0 && c < columns) out[c] += (s[0][lane] + s[1][lane]) + (s[2][lane] + s[3][lane]);
}

// Squares of a gradient, one f64 partial a block; every block takes the same share whatever the device.
extern "C" __global__ void __launch_bounds__(256)
square_sums(const float* __restrict__ g, long long n, long long per_block, double* __restrict__ part) {
  __shared__ double s[256];
  const long long first = blockIdx.x * per_block, last = first + per_block < n ? first + per_block : n;
  double x = 0.0;
  for (long long i = first + threadIdx.x * 4; i < last; i += 1024) {
    float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
    if (i + 3 < last) v = *reinterpret_cast<const float4*>(g + i);
    else { v.x = g[i]; if (i + 1 < last) v.y = g[i + 1]; if (i + 2 < last) v.z = g[i + 2]; }
    x += (double)(v.x * v.x + v.y * v.y) + (double)(v.z * v.z + v.w * v.w);
  }
  s[threadIdx.x] = x;
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) part[blockIdx.x] = s[0];
}

// norm = sqrt(sum of partials); coefficient = min(1, max_norm / (norm + 1e-6)) as torch's clip_grad_norm_ (NaN stays
// NaN), 1 without clipping (max_norm <= 0). One block of 256.
extern "C" __global__ void __launch_bounds__(256)
norm_of_partials(const double* __restrict__ part, int parts, double max_norm, double* __restrict__ norm, double* __restrict__ coefficient) {
  __shared__ double s[256];
  double x = 0.0;
  for (int i = threadIdx.x; i < parts; i += 256) x += part[i];
  s[threadIdx.x] = x;
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const double n = sqrt(s[0]);
    const double c = max_norm > 0.0 ? max_norm / (n + 1e-6) : 1.0;
    *norm = n;
    *coefficient = c > 1.0 ? 1.0 : c;
  }
}

extern "C" __global__ void __launch_bounds__(256)
add_into(const float* __restrict__ source, float* target, long long n) {
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  if (i < n) target[i] += source[i];
}

// bf16 copy of fp32 weights.
extern "C" __global__ void __launch_bounds__(256)
copy_bf16(const float* __restrict__ source, bf16* __restrict__ target, long long n) {
  const long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * 8;
  if (i + 8 <= n) save8(target + i, load8(source + i));
  else for (long long j = i; j < n; ++j) target[j] = f32_to_bf16(source[j]);
}
