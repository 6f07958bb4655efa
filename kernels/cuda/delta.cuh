// What the delta-rule kernels share: sizes, the document tables, gates, the masked scores.
#pragma once
#include "tile.cuh"

constexpr int KT = KD / TILE, VT = VD / TILE;

struct Meta {
  const int4* chunks;
  const int2* docs;
  const int* counts;  // {documents, chunks}
  int H, HV;
};

// G in units of log 2, so that decays are powers of two; rows past the end repeat the last one.
__device__ __forceinline__ void load_gates(float* G, float* B, const float* gc, const float* beta, int row0, int rows, int HV, int hv) {
  for (int i = threadIdx.x; i < TILE; i += THREADS) {
    int r = i < rows ? i : rows - 1;
    G[i] = LOG2E * gc[(long long)(row0 + r) * HV + hv];
    if (B) B[i] = i < rows ? beta[(long long)(row0 + i) * HV + hv] : 0.f;
  }
}

// P_ij = scale exp(G_i - G_j) q_i.k_j for i >= j, as a tile. `a` holds q kT on entry.
__device__ __forceinline__ void mask_scores(Frag& a, const float* G, float scale) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      int i = acc_row(r), j = acc_col(n, r);
      a.v[n][r] = i >= j ? a.v[n][r] * scale * exp2_fast(G[i] - G[j]) : 0.f;
    }
}

// dbeta_i = X_i . (k_i exp(G_i), v_i) - sum_j exp(G_i - G_j) (k_i.k_j) X_i . (w_j, u_j), X = TT (dw, du). The bracket that X_i
// multiplies is (w_i, u_i) / beta_i, which does not cancel where keys are alike; without beta it is `direct`.
__device__ __forceinline__ float gradient_of_beta(float beta, float through_wu, float direct) {
  return fabsf(beta) > 1e-6f ? through_wu / beta : direct;
}
