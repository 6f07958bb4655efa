// Depthwise causal convolution + SiLU + L2 norm of the query and key heads, forward and backward.
//   z_t = sum_j w_j x_{t-(W-1)+j} within the document;  s = z sigmoid(z)
//   first QK channels: y = s (sum over the head of s^2 + 1e-6)^-1/2;  the others: y = s
// Compile-time: KD (channels of a normalised head, 8 .. 256, a power of two), W (taps, 1 .. 8); with NO_WEIGHT, W is 1
// and z = x; with NO_SILU, s = z. A thread
// owns CH neighbouring channels and slides over a run of rows, the next rows already on their way.
// x elem [rows, ldx];  w fp32 [C, W];  y elem [rows, C];  start [rows]: first row of the row's document.
#include "vec.cuh"

constexpr int CH = KD >= 256 ? 8 : 4;
constexpr int BLOCK = 1024 / CH;  // a block covers 1024 channels
constexpr int GROUP = KD / CH;

struct Chunk { float v[CH]; };

// The factor that makes s of z, and ds/dz from it.
__device__ __forceinline__ float factor(float z) {
#ifdef NO_SILU
  return 1.f;
#else
  return sigmoidf(z);
#endif
}
__device__ __forceinline__ float slope(float z, float f) {
#ifdef NO_SILU
  return 1.f;
#else
  return f * (1.f + z * (1.f - f));
#endif
}

// A chunk as it is stored: what is on its way takes half the registers.
struct Raw {
#ifdef ELEM_F32
  float4 x[CH / 4];
#else
  uint2 x[CH / 4];
#endif
};
constexpr int AHEAD = 4;  // rows on their way

__device__ __forceinline__ Raw fetch(const elem* p) {
  Raw r;
#pragma unroll
  for (int i = 0; i < CH / 4; ++i)
#ifdef ELEM_F32
    r.x[i] = reinterpret_cast<const float4*>(p)[i];
#else
    r.x[i] = reinterpret_cast<const uint2*>(p)[i];
#endif
  return r;
}
__device__ __forceinline__ Chunk unpack(const Raw& raw) {
  Chunk r;
#pragma unroll
  for (int i = 0; i < CH / 4; ++i) {
#ifdef ELEM_F32
    r.v[4 * i] = raw.x[i].x; r.v[4 * i + 1] = raw.x[i].y; r.v[4 * i + 2] = raw.x[i].z; r.v[4 * i + 3] = raw.x[i].w;
#else
    const float2 a = unpack_bf16(raw.x[i].x), b = unpack_bf16(raw.x[i].y);
    r.v[4 * i] = a.x; r.v[4 * i + 1] = a.y; r.v[4 * i + 2] = b.x; r.v[4 * i + 3] = b.y;
#endif
  }
  return r;
}
__device__ __forceinline__ Chunk load_chunk(const elem* p) { return unpack(fetch(p)); }
// The next rows of a stream of rows [t, end), the first of them already there.
struct Stream {
  Raw rows[AHEAD];
  __device__ __forceinline__ void begin(const elem* p, long long ld, int t, int end) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) rows[i] = fetch(p + (t + i < end ? t + i : t) * ld);
  }
  __device__ __forceinline__ Chunk take(const elem* p, long long ld, int t, int end) {
    const Chunk r = unpack(rows[0]);
#pragma unroll
    for (int i = 0; i + 1 < AHEAD; ++i) rows[i] = rows[i + 1];
    if (t + AHEAD < end) rows[AHEAD - 1] = fetch(p + (t + AHEAD) * ld);
    return r;
  }
};
__device__ __forceinline__ void save_chunk(elem* p, const Chunk& x) {
#pragma unroll
  for (int i = 0; i < CH / 4; ++i)
#ifdef ELEM_F32
    reinterpret_cast<float4*>(p)[i] = make_float4(x.v[4 * i], x.v[4 * i + 1], x.v[4 * i + 2], x.v[4 * i + 3]);
#else
    reinterpret_cast<uint2*>(p)[i] = make_uint2(pack_bf16(x.v[4 * i], x.v[4 * i + 1]), pack_bf16(x.v[4 * i + 2], x.v[4 * i + 3]));
#endif
}

__device__ __forceinline__ void taps(float (&w)[W][CH], const float* p) {
#pragma unroll
  for (int j = 0; j < CH; ++j)
#pragma unroll
    for (int i = 0; i < W; ++i)
#ifdef NO_WEIGHT
      w[i][j] = 1.f;
#else
      w[i][j] = p[j * W + i];
#endif
}

// The last W rows of a thread's channels; h[W-1] is the current row.
struct Window {
  Chunk h[W];
  __device__ __forceinline__ void begin(const elem* x, long long ldx, int t0) {
#pragma unroll
    for (int i = 1; i < W; ++i) {
      const int t = t0 - W + i;
      if (t >= 0) h[i] = load_chunk(x + t * ldx);
      else
#pragma unroll
        for (int j = 0; j < CH; ++j) h[i].v[j] = 0.f;
    }
  }
  __device__ __forceinline__ void push(const Chunk& row) {
#pragma unroll
    for (int i = 0; i + 1 < W; ++i) h[i] = h[i + 1];
    h[W - 1] = row;
  }
  __device__ __forceinline__ float z(const float (&k)[W][CH], int j, int t, int s0) const {
    float a = 0.f;
#pragma unroll
    for (int i = 0; i < W; ++i) a = t - (W - 1) + i >= s0 ? fmaf(k[i][j], h[i].v[j], a) : a;
    return a;
  }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
short_conv(const elem* __restrict__ x, long long ldx, const float* __restrict__ w, const int* __restrict__ start, elem* __restrict__ y, int rows, int C, int QK, int run) {
  const int c = (blockIdx.y * BLOCK + threadIdx.x) * CH;
  const bool on = c < C;
  const int cc = on ? c : 0;
  const int t0 = blockIdx.x * run, t1 = t0 + run < rows ? t0 + run : rows;
  float k[W][CH];
  taps(k, w + (long long)cc * W);
  Window win;
  x += cc;
  win.begin(x, ldx, t0);
  Stream next;
  next.begin(x, ldx, t0, t1);
  int s1 = start[t0];
  for (int t = t0; t < t1; ++t) {
    win.push(next.take(x, ldx, t, t1));
    const int s0 = s1;
    if (t + 1 < t1) s1 = start[t + 1];
    Chunk o;
    float ss = 0.f;
#pragma unroll
    for (int j = 0; j < CH; ++j) {
      const float z = win.z(k, j, t, s0);
      o.v[j] = z * factor(z);
      ss = fmaf(o.v[j], o.v[j], ss);
    }
    ss = group_sum<GROUP>(ss);
    if (cc < QK) {
      const float r = rsqrtf(ss + 1e-6f);
#pragma unroll
      for (int j = 0; j < CH; ++j) o.v[j] *= r;
    }
    if (on) save_chunk(y + (long long)t * C + c, o);
  }
}

// dy elem [rows, C] -> dx elem, columns of a matrix with row stride lddx; dw partial sums [blocks, C, W].
extern "C" __global__ void __launch_bounds__(BLOCK)
short_conv_backward(const elem* __restrict__ x, long long ldx, const float* __restrict__ w, const int* __restrict__ start, const elem* __restrict__ dy,
                    elem* __restrict__ dx, long long lddx, float* __restrict__ dw_part, int rows, int C, int QK, int run) {
  const int c = (blockIdx.y * BLOCK + threadIdx.x) * CH;
  const bool on = c < C;
  const int cc = on ? c : 0;
  const int t0 = blockIdx.x * run, t1 = t0 + run < rows ? t0 + run : rows;
  // Rows past the run matter only to a document that began before the run's end.
  int end = t1;
  while (end < rows && end < t1 + W - 1 && start[end] < t1) ++end;
  float k[W][CH], dw[W][CH];
  taps(k, w + (long long)cc * W);
  Window win;
  x += cc;
  dy += cc;
  win.begin(x, ldx, t0);
  Chunk p[W];  // pending gradients of rows t-(W-1) .. t
#pragma unroll
  for (int i = 0; i < W; ++i)
#pragma unroll
    for (int j = 0; j < CH; ++j) { dw[i][j] = 0.f; p[i].v[j] = 0.f; }
  Stream nx, ng;
  nx.begin(x, ldx, t0, end);
  ng.begin(dy, C, t0, end);
  int s1 = start[t0];
  for (int t = t0; t < t1 + W - 1; ++t) {
#pragma unroll
    for (int i = 0; i + 1 < W; ++i) p[i] = p[i + 1];
#pragma unroll
    for (int j = 0; j < CH; ++j) p[W - 1].v[j] = 0.f;
    if (t < end) {
      win.push(nx.take(x, ldx, t, end));
      const Chunk g = ng.take(dy, C, t, end);
      const int s0 = s1;
      if (t + 1 < end) s1 = start[t + 1];
      Chunk z, sig;
      float ss = 0.f, dot = 0.f;
#pragma unroll
      for (int j = 0; j < CH; ++j) {
        z.v[j] = win.z(k, j, t, s0);
        sig.v[j] = factor(z.v[j]);
        const float s = z.v[j] * sig.v[j];
        ss = fmaf(s, s, ss);
        dot = fmaf(s, g.v[j], dot);
      }
      ss = group_sum<GROUP>(ss);
      dot = group_sum<GROUP>(dot);
      const float r = cc < QK ? rsqrtf(ss + 1e-6f) : 1.f;
      const float b = cc < QK ? r * r * r * dot : 0.f;
#pragma unroll
      for (int j = 0; j < CH; ++j) {
        const float ds = r * g.v[j] - b * (z.v[j] * sig.v[j]);
        const float dz = ds * slope(z.v[j], sig.v[j]);
#pragma unroll
        for (int i = 0; i < W; ++i)
          if (t - (W - 1) + i >= s0) {
            p[i].v[j] = fmaf(k[i][j], dz, p[i].v[j]);
            if (t < t1) dw[i][j] = fmaf(win.h[i].v[j], dz, dw[i][j]);
          }
      }
    }
    const int done = t - (W - 1);
    if (on && done >= t0 && done < t1) save_chunk(dx + (long long)done * lddx + c, p[0]);
  }
#ifndef NO_WEIGHT
  if (on)
#pragma unroll
    for (int j = 0; j < CH; ++j)
#pragma unroll
      for (int i = 0; i < W; ++i) dw_part[((long long)blockIdx.x * C + c + j) * W + i] = dw[i][j];
#endif
}
