// What the text that TVM generates for CUDA needs to be C++ for this processor.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "math_constants.h"
#include "mutants.h"
#include "shim.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define SHIM_ENTRY                                                                                                  \
  const shim::Thread shim_here = shim_thread();                                                                      \
  [[maybe_unused]] const shim::Dim3 threadIdx = shim_here.thread, blockIdx = shim_here.block,                        \
                                    blockDim = shim_here.block_dim, gridDim = shim_here.grid_dim;

// ---------------------------------------------------------------- threads that meet
static inline void __syncthreads(int line = __builtin_LINE()) { shim_barrier(line); }
static inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) { shim_warp(mask, line, true); }
static inline unsigned __activemask() { return shim_active_lanes(); }

template <class T>
static inline T shim_exchange(unsigned mask, T value, int source, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  unsigned long long bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shim_shuffle(mask, bits, source, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline int shim_lane() { return shim_index() % 32; }
template <class T>
static inline T __shfl_sync(unsigned mask, T v, int lane, int w = 32, int line = __builtin_LINE()) {
  return shim_exchange(mask, v, shim_lane() / w * w + lane % w, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, int d, int w = 32, int line = __builtin_LINE()) {
  return shim_exchange(mask, v, shim_lane() % w + d < w ? shim_lane() + d : shim_lane(), line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, int d, int w = 32, int line = __builtin_LINE()) {
  return shim_exchange(mask, v, shim_lane() % w >= d ? shim_lane() - d : shim_lane(), line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int m, int w = 32, int line = __builtin_LINE()) {
  const int source = shim_lane() ^ m;
  return shim_exchange(mask, v, source / w == shim_lane() / w ? source : shim_lane(), line);
}

// ---------------------------------------------------------------- vectors, aligned as CUDA aligns them
#define SHIM_VECTORS(T, N)                                                                 \
  struct N##1 { T x; };                                                                    \
  struct alignas(sizeof(T) * 2) N##2 { T x, y; };                                          \
  struct N##3 { T x, y, z; };                                                              \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) N##4 { T x, y, z, w; };          \
  static inline N##1 make_##N##1(T a) { return {a}; }                                      \
  static inline N##2 make_##N##2(T a, T b) { return {a, b}; }                              \
  static inline N##3 make_##N##3(T a, T b, T c) { return {a, b, c}; }                      \
  static inline N##4 make_##N##4(T a, T b, T c, T d) { return {a, b, c, d}; }
SHIM_VECTORS(signed char, char)
SHIM_VECTORS(unsigned char, uchar)
SHIM_VECTORS(short, short)
SHIM_VECTORS(unsigned short, ushort)
SHIM_VECTORS(int, int)
SHIM_VECTORS(unsigned, uint)
SHIM_VECTORS(long long, longlong)
SHIM_VECTORS(unsigned long long, ulonglong)
SHIM_VECTORS(float, float)
SHIM_VECTORS(double, double)

// ---------------------------------------------------------------- memory
template <class T>
static inline T __ldg(const T* p) { return *p; }

// A thread's own array. Of one, g++ checks indices only where no address is taken, as a vector's assignment does.
template <class T>
struct ShimPlace {
  T* at;
  int left;
  template <class V>
  operator V*() const {
    if (left < 0 || left * sizeof(T) < sizeof(V)) shim_no_element(left, sizeof(V) / sizeof(T));
    return (V*)at;
  }
};
template <class T, int N>
struct alignas(64) ShimLocal {
  T values[N];
  template <class I>
  T& operator[](I i) {
    if (i < 0 || i >= N) shim_no_element(i, N);
    return values[i];
  }
  template <class I>
  ShimPlace<T> operator+(I i) {
    if (i < 0 || i > N) shim_no_element(i, N);
    return {values + i, N - (int)i};
  }
};

// ---------------------------------------------------------------- arithmetic
#define SHIM_MIN_MAX(T)                                                 \
  static inline T max(T a, T b) { return a < b ? b : a; }               \
  static inline T min(T a, T b) { return b < a ? b : a; }
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(unsigned)
SHIM_MIN_MAX(long)
SHIM_MIN_MAX(unsigned long)
SHIM_MIN_MAX(long long)
SHIM_MIN_MAX(unsigned long long)
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }

static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline double rsqrt(double a) { return 1.0 / sqrt(a); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __saturatef(float a) { return fminf(fmaxf(a, 0.0f), 1.0f); }
static inline float __int_as_float(int a) { float r; std::memcpy(&r, &a, 4); return r; }
static inline int __float_as_int(float a) { int r; std::memcpy(&r, &a, 4); return r; }
// The C library has functions of these names that are not declared for us: hence macros.
#define __expf(a) expf(a)
#define __exp10f(a) powf(10.0f, a)
#define __logf(a) logf(a)
#define __log2f(a) log2f(a)
#define __log10f(a) log10f(a)
#define __powf(a, b) powf(a, b)
#define __sinf(a) sinf(a)
#define __cosf(a) cosf(a)
#define __tanf(a) tanf(a)
