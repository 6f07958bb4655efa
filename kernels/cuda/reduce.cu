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

// Which tensor of a list a block works on: `first` holds the first block of each, ascending, past the end of the list
// a number no block has.
constexpr int TENSORS = 64;
struct Tensors {
  const float* at[TENSORS];
  long long n[TENSORS];
  long long first[TENSORS];
};

// Squares of gradients, one f64 partial a block; every block takes the same share whatever the device.
extern "C" __global__ void __launch_bounds__(256)
square_sums(const __grid_constant__ Tensors t, long long per_block, double* __restrict__ part) {
  __shared__ double s[256];
  int i = 0;
#pragma unroll
  for (int step = TENSORS / 2; step > 0; step >>= 1)
    if ((long long)blockIdx.x >= t.first[i + step]) i += step;
  const float* g = t.at[i];
  const long long n = t.n[i], first = (blockIdx.x - t.first[i]) * per_block, last = first + per_block < n ? first + per_block : n;
  double x = 0.0;
  long long j = first + threadIdx.x * 4;
  for (; j + 7 * 1024 + 3 < last; j += 8 * 1024) {
    float4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = *reinterpret_cast<const float4*>(g + j + k * 1024);
#pragma unroll
    for (int k = 0; k < 8; ++k) x += (double)(v[k].x * v[k].x + v[k].y * v[k].y) + (double)(v[k].z * v[k].z + v[k].w * v[k].w);
  }
  for (; j < last; j += 1024) {
    float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
    if (j + 3 < last) v = *reinterpret_cast<const float4*>(g + j);
    else { v.x = g[j]; if (j + 1 < last) v.y = g[j + 1]; if (j + 2 < last) v.z = g[j + 2]; }
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
#pragma unroll 8
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

// Zeros in every tensor of a list, `n` words of 4 bytes each: one launch where there would be a hundred.
extern "C" __global__ void __launch_bounds__(256)
clear_words(const __grid_constant__ Tensors t, long long per_block) {
  int i = 0;
#pragma unroll
  for (int step = TENSORS / 2; step > 0; step >>= 1)
    if ((long long)blockIdx.x >= t.first[i + step]) i += step;
  float* to = const_cast<float*>(t.at[i]);
  const long long n = t.n[i], first = (blockIdx.x - t.first[i]) * per_block, last = first + per_block < n ? first + per_block : n;
  long long j = first + threadIdx.x * 4;
#pragma unroll 4
  for (; j + 3 < last; j += 1024) *reinterpret_cast<float4*>(to + j) = make_float4(0.f, 0.f, 0.f, 0.f);
  for (; j < last; ++j) to[j] = 0.f;
}

// target += source. A block takes 2048 values, a thread four and the four 1024 further on where both lie at multiples of 16
// bytes.
extern "C" __global__ void __launch_bounds__(256)
add_into(const float* __restrict__ source, float* __restrict__ target, long long n) {
  const long long first = (long long)blockIdx.x * 2048;
  const bool wide = ((reinterpret_cast<unsigned long long>(source) | reinterpret_cast<unsigned long long>(target)) & 15) == 0;
  if (wide && first + 2048 <= n) {
    float4 a[2], b[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const long long i = first + h * 1024 + threadIdx.x * 4;
      a[h] = *reinterpret_cast<const float4*>(source + i);
      b[h] = *reinterpret_cast<const float4*>(target + i);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<float4*>(target + first + h * 1024 + threadIdx.x * 4) =
          make_float4(b[h].x + a[h].x, b[h].y + a[h].y, b[h].z + a[h].z, b[h].w + a[h].w);
  } else {
    for (long long i = first + threadIdx.x; i < n && i < first + 2048; i += 256) target[i] += source[i];
  }
}

// bf16 copy of fp32 weights.
extern "C" __global__ void __launch_bounds__(256)
copy_bf16(const float* __restrict__ source, bf16* __restrict__ target, long long n) {
  const long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * 8;
  if (i + 8 <= n) save8(target + i, load8(source + i));
  else for (long long j = i; j < n; ++j) target[j] = f32_to_bf16(source[j]);
}

// Values between -2 and 2 with random signs and mantissas, read as bf16 or as fp32: operands for measuring products, whose
// speed depends on the bits that toggle.
extern "C" __global__ void __launch_bounds__(256)
fill_random(unsigned* __restrict__ words, long long n) {
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < n; i += (long long)gridDim.x * 256) {
    unsigned long long z = (unsigned long long)i * 0x9e3779b97f4a7c15ull + 0x1234567ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    const unsigned r = (unsigned)(z >> 32);
    // Sizes of 1/8 .. 2 in both halves.
    words[i] = (r & 0x81ff81ffu) | 0x3e003e00u;
  }
}

// Digest of `n` words: the wrapping sum of a mix of each word with its position, added to *digest. Sums of integers have
// no order, so the atomics change nothing.
extern "C" __global__ void __launch_bounds__(256)
digest_words(const unsigned* __restrict__ words, long long n, unsigned long long seed, unsigned long long* digest) {
  unsigned long long sum = 0;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < n; i += (long long)gridDim.x * 256) {
    unsigned long long z = ((unsigned long long)i << 32 | words[i]) + seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    sum += z ^ (z >> 31);
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if ((threadIdx.x & 31) == 0) atomicAdd(digest, sum);
}
