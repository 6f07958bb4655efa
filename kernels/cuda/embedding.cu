// Embedding: gather of fp32 rows, and its gradient without atomics.
// order [rows]: row numbers sorted by token, equal tokens in ascending row order. One warp-wide block of columns a
// segment; the first position of a run of equal tokens owns the run.
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

extern "C" __global__ void __launch_bounds__(128)
embed_backward(const int* __restrict__ tokens, const int* __restrict__ order, int rows, const resid* __restrict__ dx, float* dtable, int D) {
  const int p = blockIdx.x;
  const int token = tokens[order[p]];
  if (p > 0 && tokens[order[p - 1]] == token) return;
  int end = p + 1;
  while (end < rows && tokens[order[end]] == token) ++end;
  for (int c = threadIdx.x * 8; c < D; c += 128 * 8) {
    Vec8 s = load8(dtable + (long long)token * D + c);
    for (int i = p; i < end; ++i) {
      Vec8 g = load8(dx + (long long)order[i] * D + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) s.v[j] += g.v[j];
    }
    save8(dtable + (long long)token * D + c, s);
  }
}
