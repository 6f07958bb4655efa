// Embedding: gather of fp32 rows, and its gradient without atomics.
// order [rows]: row numbers sorted by token, equal tokens in ascending row order. Sums run over windows of that order
// first, then over a run's windows: a frequent token is many short sums.
#include "vec.cuh"
#ifdef RESID_ELEM
typedef elem resid;
#else
typedef float resid;
#endif

extern "C" __global__ void __launch_bounds__(256)
embed(const int* __restrict__ tokens, const resid* __restrict__ table, resid* __restrict__ x, long long n, int D) {
  const long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * 8;
  if (i >= n) return;
  const long long row = i / D;
  save8(x + i, load8(table + (long long)tokens[row] * D + (i - row * D)));
}

constexpr int WINDOW = 32;  // positions of `order` a block sums

// Runs of equal tokens inside a window are added to the table; of a run that crosses a window's edge the window's part
// goes to `part` [windows, 2, D]: place 0 if it is the window's first run, else 1.
extern "C" __global__ void __launch_bounds__(128)
embed_backward(const int* __restrict__ tokens, const int* __restrict__ order, int rows, const resid* __restrict__ dx, float* dtable, float* __restrict__ part, int D) {
  __shared__ int row[WINDOW], token[WINDOW + 2];
  const int w0 = blockIdx.x * WINDOW, n = rows - w0 < WINDOW ? rows - w0 : WINDOW;
  if (threadIdx.x < WINDOW + 2) {
    const int p = w0 + (int)threadIdx.x - 1;
    token[threadIdx.x] = p >= 0 && p < rows ? tokens[order[p]] : -1;
    if (threadIdx.x > 0 && threadIdx.x <= n) row[threadIdx.x - 1] = order[p];
  }
  __syncthreads();
  for (int c = threadIdx.x * 8; c < D; c += 128 * 8) {
    Vec8 s;
    int first = 0;
    for (int i = 0; i < n; ++i) {
      const Vec8 g = load8(dx + (long long)row[i] * D + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) s.v[j] = i == first ? g.v[j] : s.v[j] + g.v[j];
      const int t = token[i + 1];
      if (i + 1 < n && token[i + 2] == t) continue;
      const bool before = first == 0 && token[0] == t, after = i + 1 == n && token[i + 2] == t;
      if (before || after) {
        save8(part + ((long long)blockIdx.x * 2 + (first == 0 ? 0 : 1)) * D + c, s);
      } else {
        Vec8 d = load8(dtable + (long long)t * D + c);
#pragma unroll
        for (int j = 0; j < 8; ++j) d.v[j] += s.v[j];
        save8(dtable + (long long)t * D + c, d);
      }
      first = i + 1;
    }
  }
}

// Runs that cross edges: the window in which one starts adds its parts, in order.
extern "C" __global__ void __launch_bounds__(128)
embed_backward_runs(const int* __restrict__ tokens, const int* __restrict__ order, int rows, const float* __restrict__ part, float* dtable, int D) {
  const int w0 = blockIdx.x * WINDOW, w1 = w0 + WINDOW;
  if (w1 >= rows) return;
  const int t = tokens[order[w1 - 1]];
  if (tokens[order[w1]] != t) return;
  int q = w1 - 1;
  while (q > w0 && tokens[order[q - 1]] == t) --q;
  if (q == w0 && w0 > 0 && tokens[order[w0 - 1]] == t) return;
  int end = blockIdx.x + 1;  // windows that hold a part
  while (end * WINDOW < rows && tokens[order[end * WINDOW]] == t) ++end;
  for (int c = threadIdx.x * 8; c < D; c += 128 * 8) {
    Vec8 s = load8(part + ((long long)blockIdx.x * 2 + (q == w0 ? 0 : 1)) * D + c);
#pragma unroll 4
    for (int v = blockIdx.x + 1; v < end; ++v) {
      const Vec8 g = load8(part + (long long)v * 2 * D + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) s.v[j] += g.v[j];
    }
    Vec8 d = load8(dtable + (long long)t * D + c);
#pragma unroll
    for (int j = 0; j < 8; ++j) d.v[j] += s.v[j];
    save8(dtable + (long long)t * D + c, d);
  }
}
