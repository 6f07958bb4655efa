// Depthwise causal convolution + SiLU + L2 norm of the query and key heads, forward and backward.
//   z_t = sum_j w_j x_{t-(W-1)+j} within the document;  s = z sigmoid(z)
//   first QK channels: y = s (sum over the head of s^2 + 1e-6)^-1/2;  the others: y = s
// Compile-time: KD (channels of a normalised head, 8 .. 256, a power of two), W (taps, 1 .. 8); with NO_WEIGHT, W is 1
// and z = x; with NO_SILU, s = z.
// x elem [rows, ldx];  w fp32 [C, W];  y elem [rows, C];  start [rows]: first row of the row's document, ascending.
//
// Every element is read once and written once, the floor; instructions and waiting are what is above it. A thread owns CH
// neighbouring channels and slides over a run of rows, TURN rows at a time: TURN is a multiple of W, so a row's place in
// the window is known at compile time and nothing is moved. The next rows are on their way to a ring in shared memory, where
// they take no registers; every thread reads only what it asked for itself, so that no barrier is needed. Rows at least
// W - 1 behind their document's first need no test per tap; a block tests once per turn. A block without normalised
// channels leaves the sums over heads out. None of that changes the order of any sum.
#include "vec.cuh"

// Channels a thread: forward 16 bytes of bf16; backward has four times the values to keep and takes half, unless a head
// needs more. A block covers BLOCK channels.
constexpr int BLOCK = 512;
constexpr int FORWARD = 8, BACKWARD = KD >= 256 ? 8 : 4;
constexpr int TURN = W <= 2 ? 4 : W;
#ifdef ELEM_F32
constexpr int FORWARD_BLOCKS = 4, BACKWARD_BLOCKS = 2;
#else
constexpr int FORWARD_BLOCKS = W <= 4 ? 10 : 4, BACKWARD_BLOCKS = W <= 4 && BACKWARD == 4 ? 5 : 2;
#endif

template <int CH>
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

// A chunk as it is stored.
template <int CH>
struct Raw { unsigned x[CH * sizeof(elem) / 4]; };
template <int CH>
__device__ __forceinline__ Chunk<CH> unpack(const Raw<CH>& raw) {
  Chunk<CH> r;
#ifdef ELEM_F32
#pragma unroll
  for (int i = 0; i < CH; ++i) r.v[i] = __uint_as_float(raw.x[i]);
#else
#pragma unroll
  for (int i = 0; i < CH / 2; ++i) { const float2 a = unpack_bf16(raw.x[i]); r.v[2 * i] = a.x; r.v[2 * i + 1] = a.y; }
#endif
  return r;
}
template <int CH>
__device__ __forceinline__ Raw<CH> pack(const Chunk<CH>& x) {
  Raw<CH> r;
#ifdef ELEM_F32
#pragma unroll
  for (int i = 0; i < CH; ++i) r.x[i] = __float_as_uint(x.v[i]);
#else
#pragma unroll
  for (int i = 0; i < CH / 2; ++i) r.x[i] = pack_bf16(x.v[2 * i], x.v[2 * i + 1]);
#endif
  return r;
}
// From shared memory, in whole words of the chunk's width.
template <int CH>
__device__ __forceinline__ Chunk<CH> load_shared(unsigned at) {
  Raw<CH> r;
  if constexpr (sizeof(r) == 8) asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(r.x[0]), "=r"(r.x[1]) : "r"(at));
  else
#pragma unroll
    for (int i = 0; i < (int)sizeof(r) / 16; ++i)
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(r.x[4 * i]), "=r"(r.x[4 * i + 1]), "=r"(r.x[4 * i + 2]), "=r"(r.x[4 * i + 3])
                   : "r"(at + 16 * i));
  return unpack(r);
}
template <int CH>
__device__ __forceinline__ Chunk<CH> load_global(const elem* p) {
  Chunk<CH> r;
#pragma unroll
  for (int i = 0; i < CH; ++i) r.v[i] = to_f32(p[i]);
  return r;
}
// To global memory where `on`, without a branch: the rows of a turn stay one piece of code.
template <int CH>
__device__ __forceinline__ void save_chunk(bool on, elem* p, const Chunk<CH>& x) {
  const Raw<CH> r = pack(x);
  if constexpr (sizeof(r) == 8)
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};\n}" ::"r"((unsigned)on), "l"(p), "r"(r.x[0]), "r"(r.x[1])
                 : "memory");
  else
#pragma unroll
    for (int i = 0; i < (int)sizeof(r) / 16; ++i)
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"((unsigned)on),
                   "l"(reinterpret_cast<char*>(p) + 16 * i), "r"(r.x[4 * i]), "r"(r.x[4 * i + 1]), "r"(r.x[4 * i + 2]), "r"(r.x[4 * i + 3])
                   : "memory");
}

// Where a row of a matrix begins, in one multiply-add.
struct Rows {
  const char* at;
  int stride;  // bytes
  __device__ __forceinline__ Rows(const elem* p, long long ld) : at(reinterpret_cast<const char*>(p)), stride((int)ld * (int)sizeof(elem)) {}
  __device__ __forceinline__ const elem* row(int t) const {
    const elem* r;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(r) : "r"(t), "r"(stride), "l"(at));
    return r;
  }
  __device__ __forceinline__ elem* out(int t) const { return const_cast<elem*>(row(t)); }
};

// Rows on their way: row t of a run that starts at t0 goes to slot (t - t0) mod SLOTS, asked for AHEAD rows before it is
// needed, when the row that was there is in registers.
constexpr int SLOTS = 8, AHEAD = SLOTS - 1;
constexpr unsigned SLOT = BLOCK * sizeof(elem), RING = SLOTS * SLOT;  // bytes
// A thread's place in slot 0 of the first ring.
template <int CH>
__device__ __forceinline__ unsigned place_in(const elem* rings) {
  return static_cast<unsigned>(__cvta_generic_to_shared(rings)) + threadIdx.x * (unsigned)(CH * sizeof(elem));
}
template <int CH>
__device__ __forceinline__ void ask(unsigned to, const elem* from) {
  constexpr int BYTES = CH * (int)sizeof(elem);
  if constexpr (BYTES == 8) asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
#pragma unroll
  for (int i = 0; i < BYTES / 16; ++i)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * i), "l"(reinterpret_cast<const char*>(from) + 16 * i) : "memory");
}
// Ends what was asked for of one row, of all streams.
__device__ __forceinline__ void asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for the oldest row.
__device__ __forceinline__ void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory"); }
// Where the slot of the u-th row of a turn lies, `b` being that of its first; and that of the row AHEAD of it.
__device__ __forceinline__ unsigned slot(unsigned b, int u) { return (SLOTS % TURN == 0 ? b + u : (b + u) % SLOTS) * SLOT; }
__device__ __forceinline__ unsigned slot_ahead(unsigned b, int u) { return u == 0 ? (b + AHEAD) % SLOTS * SLOT : slot(b, u - 1); }

template <int CH>
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

// The last W rows of a thread's channels: the row `u` of a turn is at place u mod W, and the place of tap i of it is that of
// the row W - 1 - i before.
__device__ constexpr int place(int u, int i) { return (u + 1 + i) % W; }

template <int CH>
struct Window {
  Chunk<CH> h[W];
  __device__ __forceinline__ void begin(const Rows& x, int t0) {
#pragma unroll
    for (int i = 1; i < W; ++i) {
      const int t = t0 - W + i;
      if (t >= 0) h[i] = load_global<CH>(x.row(t));
      else
#pragma unroll
        for (int j = 0; j < CH; ++j) h[i].v[j] = 0.f;
    }
  }
  // z of channel j of row t, the u-th of its turn, with the document's first row s0; `inside`: every tap is in it.
  template <bool inside>
  __device__ __forceinline__ float z(const float (&k)[W][CH], int j, int u, int t, int s0) const {
    float a = 0.f;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float sum = fmaf(k[i][j], h[place(u, i)].v[j], a);
      a = inside || t - (W - 1) + i >= s0 ? sum : a;
    }
    return a;
  }
};
// Sum over a head of what CH channels of a thread add up to by fours: the same tree whatever CH is.
template <int CH>
__device__ __forceinline__ float head_sum(float (&part)[CH / 4]) {
  float x = group_sum<(KD > CH ? KD / CH : 1)>(part[0]);
  if constexpr (CH == 8) x += group_sum<(KD > CH ? KD / CH : 1)>(part[1]);
  return x;
}

struct Run {
  int t0, t1, c;
  bool on, normalised;
  __device__ __forceinline__ Run(int ch, int rows, int C, int QK, int run) {
    c = blockIdx.y * BLOCK + threadIdx.x * ch;
    on = c < C;
    if (!on) c = 0;
    normalised = c < QK;
    t0 = blockIdx.x * run;
    t1 = t0 + run < rows ? t0 + run : rows;
  }
};

template <bool norm, bool inside>
__device__ __forceinline__ void forward_turn(Window<FORWARD>& win, unsigned ring, const float (&k)[W][FORWARD], const Run& run, const Rows& x, const Rows& y,
                                             const int* __restrict__ start, int g) {
  const unsigned b = (unsigned)(g - run.t0) % SLOTS;
#pragma unroll
  for (int u = 0; u < TURN; ++u) {
    const int t = g + u;
    if (!inside && t >= run.t1) break;
    const int s0 = inside ? 0 : start[t];
    arrived();
    win.h[u % W] = load_shared<FORWARD>(ring + slot(b, u));
    if (t + AHEAD < run.t1) ask<FORWARD>(ring + slot_ahead(b, u), x.row(t + AHEAD));
    asked();
    Chunk<FORWARD> o;
    float ss[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < FORWARD; ++j) {
      const float z = win.z<inside>(k, j, u, t, s0);
      o.v[j] = z * factor(z);
      if (norm) ss[j / 4] = fmaf(o.v[j], o.v[j], ss[j / 4]);
    }
    if (norm) {
      const float sum = head_sum<FORWARD>(ss);
      const float r = run.normalised ? rsqrtf(sum + 1e-6f) : 1.f;
#pragma unroll
      for (int j = 0; j < FORWARD; ++j) o.v[j] *= r;
    }
    save_chunk(run.on, y.out(t), o);
  }
}
template <bool norm>
__device__ __forceinline__ void forward_run(unsigned ring, const float (&k)[W][FORWARD], const Run& run, const Rows& x, const Rows& y,
                                            const int* __restrict__ start) {
  Window<FORWARD> win;
  win.begin(x, run.t0);
  int last = start[min(run.t0 + TURN, run.t1) - 1];
  for (int g = run.t0; g < run.t1; g += TURN) {
    // The document of the turn's last row began W - 1 rows before its first: all of it is inside.
    const bool inside = g + TURN <= run.t1 && last <= g - (W - 1);
    last = start[min(g + 2 * TURN, run.t1) - 1];
    if (inside) forward_turn<norm, true>(win, ring, k, run, x, y, start, g);
    else forward_turn<norm, false>(win, ring, k, run, x, y, start, g);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK / FORWARD, FORWARD_BLOCKS)
short_conv(const elem* __restrict__ x, long long ldx, const float* __restrict__ w, const int* __restrict__ start, elem* __restrict__ y, int rows, int C, int QK, int run) {
  __shared__ __align__(16) elem rings[SLOTS * BLOCK];
  const unsigned ring = place_in<FORWARD>(rings);
  const Run r(FORWARD, rows, C, QK, run);
  const Rows from(x + r.c, ldx), to(y + r.c, C);
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    if (r.t0 + i < r.t1) ask<FORWARD>(ring + i * SLOT, from.row(r.t0 + i));
    asked();
  }
  float k[W][FORWARD];
  taps(k, w + (long long)r.c * W);
  if ((int)blockIdx.y * BLOCK < QK) forward_run<true>(ring, k, r, from, to, start);
  else forward_run<false>(ring, k, r, from, to, start);
}

// What a thread of the backward pass keeps: the window, the gradients of the last W rows (row u of a turn at place u mod W)
// as far as they are known, and the gradient of its taps.
struct Backward {
  Window<BACKWARD> win;
  Chunk<BACKWARD> p[W];
  float k[W][BACKWARD], dw[W][BACKWARD];
};

// `end`: past the last row that a row of the run needs.
template <bool norm, bool inside>
__device__ __forceinline__ void backward_turn(Backward& b, unsigned ring, const Run& run, const Rows& x, const Rows& dy, const Rows& dx,
                                              const int* __restrict__ start, int g, int end) {
  const unsigned first = (unsigned)(g - run.t0) % SLOTS;
#pragma unroll
  for (int u = 0; u < TURN; ++u) {
    const int t = g + u;
#pragma unroll
    for (int j = 0; j < BACKWARD; ++j) b.p[u % W].v[j] = 0.f;
    if (inside || t < end) {
      const int s0 = inside ? 0 : start[t];
      arrived();
      b.win.h[u % W] = load_shared<BACKWARD>(ring + slot(first, u));
      const Chunk<BACKWARD> dout = load_shared<BACKWARD>(ring + RING + slot(first, u));
      if (t + AHEAD < end) {
        ask<BACKWARD>(ring + slot_ahead(first, u), x.row(t + AHEAD));
        ask<BACKWARD>(ring + RING + slot_ahead(first, u), dy.row(t + AHEAD));
      }
      asked();
      Chunk<BACKWARD> z, f;
      float ss[BACKWARD / 4], dot[BACKWARD / 4];
#pragma unroll
      for (int j = 0; j < BACKWARD / 4; ++j) ss[j] = dot[j] = 0.f;
#pragma unroll
      for (int j = 0; j < BACKWARD; ++j) {
        z.v[j] = b.win.z<inside>(b.k, j, u, t, s0);
        f.v[j] = factor(z.v[j]);
        if (norm) {
          const float s = z.v[j] * f.v[j];
          ss[j / 4] = fmaf(s, s, ss[j / 4]);
          dot[j / 4] = fmaf(s, dout.v[j], dot[j / 4]);
        }
      }
      float r = 1.f, along = 0.f;
      if (norm) {
        const float sum = head_sum<BACKWARD>(ss), with = head_sum<BACKWARD>(dot);
        r = run.normalised ? rsqrtf(sum + 1e-6f) : 1.f;
        along = run.normalised ? r * r * r * with : 0.f;
      }
#pragma unroll
      for (int j = 0; j < BACKWARD; ++j) {
        const float ds = norm ? r * dout.v[j] - along * (z.v[j] * f.v[j]) : dout.v[j];
        const float dz = ds * slope(z.v[j], f.v[j]);
#pragma unroll
        for (int i = 0; i < W; ++i)
          if (inside || t - (W - 1) + i >= s0) {
            float& p = b.p[place(u, i)].v[j];
            p = fmaf(b.k[i][j], dz, p);
            if (inside || t < run.t1) b.dw[i][j] = fmaf(b.win.h[place(u, i)].v[j], dz, b.dw[i][j]);
          }
      }
    }
    const int done = t - (W - 1);
    save_chunk(run.on && (inside || (done >= run.t0 && done < run.t1)), dx.out(done), b.p[place(u, 0)]);
  }
}
template <bool norm>
__device__ __forceinline__ void backward_run(Backward& b, unsigned ring, const Run& run, const Rows& x, const Rows& dy, const Rows& dx,
                                             const int* __restrict__ start, int end) {
  int last = start[min(run.t0 + TURN, end) - 1];
  for (int g = run.t0; g < run.t1 + W - 1; g += TURN) {
    // As in the forward pass; in the first turn some rows before the run would be finished.
    const bool inside = g - (W - 1) >= run.t0 && g + TURN <= run.t1 && last <= g - (W - 1);
    last = start[min(g + 2 * TURN, end) - 1];
    if (inside) backward_turn<norm, true>(b, ring, run, x, dy, dx, start, g, end);
    else backward_turn<norm, false>(b, ring, run, x, dy, dx, start, g, end);
  }
}

// dy elem [rows, C] -> dx elem, columns of a matrix with row stride lddx; dw partial sums [blocks, C, W].
extern "C" __global__ void __launch_bounds__(BLOCK / BACKWARD, BACKWARD_BLOCKS)
short_conv_backward(const elem* __restrict__ x, long long ldx, const float* __restrict__ w, const int* __restrict__ start, const elem* __restrict__ dy,
                    elem* __restrict__ dx, long long lddx, float* __restrict__ dw_part, int rows, int C, int QK, int run) {
  __shared__ __align__(16) elem rings[2 * SLOTS * BLOCK];
  const unsigned ring = place_in<BACKWARD>(rings);
  const Run r(BACKWARD, rows, C, QK, run);
  // Rows past the run matter only to a document that began before the run's end.
  int end = r.t1;
#pragma unroll
  for (int i = 0; i < W - 1; ++i) end += r.t1 + i < rows && start[min(r.t1 + i, rows - 1)] < r.t1;
  const Rows from(x + r.c, ldx), grad(dy + r.c, C), to(dx + r.c, lddx);
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    if (r.t0 + i < end) {
      ask<BACKWARD>(ring + i * SLOT, from.row(r.t0 + i));
      ask<BACKWARD>(ring + RING + i * SLOT, grad.row(r.t0 + i));
    }
    asked();
  }
  Backward b;
  taps(b.k, w + (long long)r.c * W);
  b.win.begin(from, r.t0);
#pragma unroll
  for (int i = 0; i < W; ++i)
#pragma unroll
    for (int j = 0; j < BACKWARD; ++j) { b.dw[i][j] = 0.f; b.p[i].v[j] = 0.f; }
  if ((int)blockIdx.y * BLOCK < QK) backward_run<true>(b, ring, r, from, grad, to, start, end);
  else backward_run<false>(b, ring, r, from, grad, to, start, end);
#ifndef NO_WEIGHT
  if (r.on)
#pragma unroll
    for (int j = 0; j < BACKWARD; ++j)
#pragma unroll
      for (int i = 0; i < W; ++i) dw_part[((long long)blockIdx.x * C + r.c + j) * W + i] = b.dw[i][j];
#endif
}
