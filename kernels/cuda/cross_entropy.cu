// Cross entropy over a block of rows of logits, loss and gradient in one kernel: the second pass over a row reads it
// from L2. logits elem [rows, ld] become the gradient in place when `scale` is not null.
//   loss_r = log sum exp(logits_r) - logits_r[target],   dlogits = (softmax - onehot) * scale,  0 where target < 0
#include "vec.cuh"

constexpr int CE_THREADS = 512;

__device__ __forceinline__ void combine(float& m, float& s, float m2, float s2) {
  float n = fmaxf(m, m2);
  s = s * exp2f((m - n) * 1.4426950408889634f) + s2 * exp2f((m2 - n) * 1.4426950408889634f);
  m = n;
}

extern "C" __global__ void __launch_bounds__(CE_THREADS)
cross_entropy(elem* __restrict__ logits, long long ld, const int* __restrict__ targets, int vocab, const double* __restrict__ scale, float* __restrict__ loss) {
  __shared__ float sm[CE_THREADS / 32], ssum[CE_THREADS / 32];
  elem* row = logits + (long long)blockIdx.x * ld;
  const int target = targets[blockIdx.x];
  const float L2E = 1.4426950408889634f;
  if (target < 0) {
    if (threadIdx.x == 0) loss[blockIdx.x] = 0.f;
    if (scale) {
      Vec8 z;
#pragma unroll
      for (int j = 0; j < 8; ++j) z.v[j] = 0.f;
      for (int c = threadIdx.x * 8; c < vocab; c += CE_THREADS * 8) save8(row + c, z);
    }
    return;
  }
  float m = -3.0e38f, s = 0.f;
  for (int c = threadIdx.x * 8; c < vocab; c += CE_THREADS * 8) {
    Vec8 x = load8(row + c);
    float n = m;
#pragma unroll
    for (int j = 0; j < 8; ++j) n = fmaxf(n, x.v[j]);
    float a = 0.f;
#pragma unroll
    for (int j = 0; j < 8; ++j) a += exp2f((x.v[j] - n) * L2E);
    s = fmaf(s, exp2f((m - n) * L2E), a);
    m = n;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    float m2 = __shfl_xor_sync(0xffffffffu, m, o), s2 = __shfl_xor_sync(0xffffffffu, s, o);
    combine(m, s, m2, s2);
  }
  if ((threadIdx.x & 31) == 0) { sm[threadIdx.x >> 5] = m; ssum[threadIdx.x >> 5] = s; }
  __syncthreads();
  m = sm[0];
  s = ssum[0];
  for (int w = 1; w < CE_THREADS / 32; ++w) combine(m, s, sm[w], ssum[w]);
  const float lse = m + logf(s);
  if (threadIdx.x == 0) loss[blockIdx.x] = lse - to_f32(row[target]);
  if (!scale) return;
  __syncthreads();
  const float f = (float)*scale;
  for (int c = threadIdx.x * 8; c < vocab; c += CE_THREADS * 8) {
    Vec8 x = load8(row + c);
#pragma unroll
    for (int j = 0; j < 8; ++j) x.v[j] = (exp2f((x.v[j] - lse) * L2E) - (c + j == target ? 1.f : 0.f)) * f;
    save8(row + c, x);
  }
}

#if !defined(ELEM_F32) && __CUDA_ARCH__ >= 900
// The same with rows read once: the four blocks of a cluster hold a quarter of a row each in shared memory, `slice`
// columns (a multiple of 8), with room for three rows. The floor is one read and one write of the logits; two
// exponentials an element take 0.6 of that time on the special-function unit, so nothing else may stand still. Hence a
// grid that stays, one block a multiprocessor (4 blocks a cluster, rows strided by the number of clusters), and nobody
// who waits for what was just asked for:
//   sixteen warps: sums of row i + 1, then the gradient of row i, whose sums came in while row i + 1's were formed;
//   the last warp: adds the warps' sums, trades them with the other blocks, and has the copy engine fetch row i + 2
//   where row i - 1 was, so that a row has the time of a whole row to arrive.
// They meet at barriers in shared memory only; every barrier is waited for once between two of its phases (the next phase
// needs something that each waiting warp does afterwards), so the parity of the row's turn names the phase. Buffers come in
// twos for the same reason. Sums have a fixed order that depends neither on the grid nor on who is first.
// Rows without a target are loaded and summed like the others, which keeps the clusters in step, and get zeros.
constexpr int CLUSTER = 4, SLOTS = 3;
constexpr int SUMMERS = CE_THREADS / 32;
constexpr int CE_CLUSTER_THREADS = CE_THREADS + 32;

typedef unsigned long long Barrier;

__device__ __forceinline__ unsigned shared_at(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void begin_barrier(Barrier* b, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(Barrier* b) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.release.cta.shared::cta.b64 state, [%0];\n}" ::"r"(shared_at(b)) : "memory");
}
__device__ __forceinline__ void await(Barrier* b, unsigned parity) {
  unsigned done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared_at(b)), "r"(parity) : "memory");
  } while (!done);
}
__device__ __forceinline__ void expect(Barrier* b, unsigned bytes) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.release.cta.shared::cta.b64 state, [%0], %1;\n}" ::"r"(shared_at(b)), "r"(bytes) : "memory");
}
// Writes {a, b} to `to` of block `rank` of the cluster; its barrier counts the bytes, so no fence is needed.
__device__ __forceinline__ void tell(int rank, float2* to, Barrier* barrier, float a, float b) {
  asm volatile(
      "{\n.reg .b32 p, q;\nmapa.shared::cluster.u32 p, %0, %2;\nmapa.shared::cluster.u32 q, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [p], {%3, %4}, [q];\n}" ::"r"(shared_at(to)),
      "r"(shared_at(barrier)), "r"(rank), "f"(a), "f"(b)
      : "memory");
}
__device__ __forceinline__ float2 told(const float2* p) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(shared_at(p)) : "memory");
  return v;
}
// Has the copy engine bring `bytes` (a multiple of 16); the barrier's phase ends when they are there.
__device__ __forceinline__ void fetch_slice(elem* to, const elem* from, unsigned bytes, Barrier* b) {
  expect(b, bytes);
  if (bytes)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from), "r"(bytes),
                 "r"(shared_at(b))
                 : "memory");
}
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ unsigned max_pair(unsigned a, unsigned b) {
  unsigned r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CE_CLUSTER_THREADS, 1)
cross_entropy_cluster(elem* __restrict__ logits, long long ld, const int* __restrict__ targets, int rows, int vocab, int slice,
                      const double* __restrict__ scale, float* __restrict__ loss) {
  extern __shared__ __align__(128) elem held[];
  // A row's slice is there; it was read for the last time; the warps' sums are there; the blocks' sums are; the row's
  // normaliser is.
  __shared__ __align__(8) Barrier full[SLOTS], empty[SLOTS], summed[2], traded[2], known[2];
  __shared__ __align__(8) float2 warp_sums[2][SUMMERS], block_sums[2][CLUSTER];
  __shared__ float shifts[2];
  __shared__ int wanted[2];
  const int rank = blockIdx.x & (CLUSTER - 1), cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int first = rank * slice, n = vocab - first < slice ? (vocab - first < 0 ? 0 : vocab - first) : slice;
  const int count = cluster < rows ? (rows - cluster + clusters - 1) / clusters : 0;  // rows of this cluster
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      begin_barrier(&full[i], 1);
      begin_barrier(&empty[i], SUMMERS);
    }
    for (int i = 0; i < 2; ++i) {
      begin_barrier(&summed[i], SUMMERS);
      begin_barrier(&traded[i], 1);
      begin_barrier(&known[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
  }
  cluster_barrier();
  logits += first;

  if (warp == SUMMERS) {
    const auto fetch = [&](int i) {
      const int slot = i % SLOTS;
      fetch_slice(held + slot * slice, logits + (cluster + (long long)i * clusters) * ld, n * (unsigned)sizeof(elem), &full[slot]);
    };
    if (lane == 0)
      for (int i = 0; i < SLOTS && i < count; ++i) fetch(i);
    for (int i = 0; i < count; ++i) {
      const int b = i & 1, parity = i >> 1 & 1, r = cluster + i * clusters;
      const int target = targets[r];
      await(&summed[b], parity);
      float m = warp_sums[b][0].x, s = warp_sums[b][0].y;
      for (int w = 1; w < SUMMERS; ++w) combine(m, s, warp_sums[b][w].x, warp_sums[b][w].y);
      __syncwarp();  // every lane has read before anyone can write the same place again; so below
      if (lane == 0) expect(&traded[b], CLUSTER * sizeof(float2));
      if (lane < CLUSTER) tell(lane, &block_sums[b][rank], &traded[b], m, s);
      // Before anything that waits for other blocks: the copy engine shall not stand still for them.
      if (i > 0 && i + 2 < count) {
        await(&empty[(i - 1) % SLOTS], (i - 1) / SLOTS & 1);
        if (lane == 0) fetch(i + 2);
      }
      await(&traded[b], parity);
      float2 other = told(&block_sums[b][0]);
      m = other.x;
      s = other.y;
#pragma unroll
      for (int k = 1; k < CLUSTER; ++k) {
        other = told(&block_sums[b][k]);
        combine(m, s, other.x, other.y);
      }
      const float lse = m + logf(s);
      if (lane == 0) {
        shifts[b] = lse * LOG2E;
        wanted[b] = target;
        arrive(&known[b]);
        const int at = target - first;
        if (target < 0) {
          if (rank == 0) loss[r] = 0.f;
        } else if (at >= 0 && at < n) {
          await(&full[i % SLOTS], i / SLOTS & 1);
          loss[r] = lse - to_f32(held[i % SLOTS * slice + at]);
        }
      }
      __syncwarp();
    }
  } else {
    const float f = scale ? (float)*scale : 0.f;
    for (int i = -1; i < count; ++i) {
      const int next = i + 1;
      if (next < count) {
        const elem* x = held + next % SLOTS * slice;
        await(&full[next % SLOTS], next / SLOTS & 1);
        float m = -3.0e38f, s = 0.f;
#pragma unroll 2
        for (int c = threadIdx.x * 8; c < n; c += CE_THREADS * 8) {
          const uint4 raw = *reinterpret_cast<const uint4*>(x + c);
          const unsigned w[4] = {raw.x, raw.y, raw.z, raw.w};
          const float2 most = unpack_bf16(max_pair(max_pair(raw.x, raw.y), max_pair(raw.z, raw.w)));
          const float top = fmaxf(m, fmaxf(most.x, most.y));
          float a = 0.f;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float2 v = unpack_bf16(w[j]);
            a += exp2_fast((v.x - top) * LOG2E);
            a += exp2_fast((v.y - top) * LOG2E);
          }
          s = fmaf(s, exp2_fast((m - top) * LOG2E), a);
          m = top;
        }
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
          const float m2 = __shfl_xor_sync(0xffffffffu, m, o), s2 = __shfl_xor_sync(0xffffffffu, s, o);
          combine(m, s, m2, s2);
        }
        if (lane == 0) {
          warp_sums[next & 1][warp] = make_float2(m, s);
          arrive(&summed[next & 1]);
        }
      }
      if (i < 0) continue;
      await(&known[i & 1], i >> 1 & 1);
      const float shift = shifts[i & 1];
      const int target = wanted[i & 1];
      if (scale) {
        const elem* x = held + i % SLOTS * slice;
        elem* row = logits + (cluster + (long long)i * clusters) * ld;
        if (target < 0) {
          for (int c = threadIdx.x * 8; c < n; c += CE_THREADS * 8) *reinterpret_cast<uint4*>(row + c) = make_uint4(0, 0, 0, 0);
        } else {
#pragma unroll 2
          for (int c = threadIdx.x * 8; c < n; c += CE_THREADS * 8) {
            Vec8 v = load8(x + c);
#pragma unroll
            for (int j = 0; j < 8; ++j) v.v[j] = exp2_fast(fmaf(v.v[j], LOG2E, -shift)) * f;
            save8(row + c, v);
          }
          // The thread that wrote the target's column writes it once more: no comparison an element.
          const int at = target - first;
          if (at >= 0 && at < n && (at / 8 & (CE_THREADS - 1)) == threadIdx.x) {
            const elem g = from_f32((exp2_fast(fmaf(to_f32(x[at]), LOG2E, -shift)) - 1.f) * f);
            asm volatile("st.global.u16 [%0], %1;" ::"l"(row + at), "h"(g.x) : "memory");
          }
        }
      }
      __syncwarp();
      if (lane == 0) arrive(&empty[i % SLOTS]);
    }
  }
  // Nobody leaves while another may still write here.
  __syncwarp();
  cluster_barrier();
}
#endif

// total += sum of the rows' losses in f64, fixed tree; one block of 256.
extern "C" __global__ void __launch_bounds__(256)
sum_losses(const float* __restrict__ loss, int rows, double* total) {
  __shared__ double s[256];
  double x = 0.0;
  for (int i = threadIdx.x; i < rows; i += 256) x += (double)loss[i];
  s[threadIdx.x] = x;
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) *total += s[0];
}
