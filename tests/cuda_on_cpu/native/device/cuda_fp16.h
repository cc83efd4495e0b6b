// Half precision: each operation is done in float and rounded, as the hardware's own is.
#pragma once
#include "cuda.h"

// As <immintrin.h> has it, whose thousands of lines would be read for each kernel.
static inline unsigned short shim_half_bits(float value) {
  typedef float floats __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtps2ph(floats{value, 0, 0, 0}, 0)[0];
}
static inline float shim_half_value(unsigned short bits) {
  typedef short shorts __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps(shorts{(short)bits, 0, 0, 0, 0, 0, 0, 0})[0];
}

struct __half {
  unsigned short bits;
  __half() = default;
  __half(float value) : bits(shim_half_bits(value)) {}
  __half(double value) : __half((float)value) {}
  __half(int value) : __half((float)value) {}
  __half(unsigned value) : __half((float)value) {}
  __half(long long value) : __half((float)value) {}
  __half(bool value) : __half((float)value) {}
  operator float() const { return shim_half_value(bits); }
};
using half = __half;
struct alignas(4) __half2 {
  half x, y;
};
using half2 = __half2;
static inline half2 make_half2(half a, half b) { return {a, b}; }

#define SHIM_HALF_BINARY(OP)                                                             \
  static inline half operator OP(half a, half b) { return half((float)a OP(float) b); } \
  static inline half2 operator OP(half2 a, half2 b) { return {a.x OP b.x, a.y OP b.y}; }
SHIM_HALF_BINARY(+)
SHIM_HALF_BINARY(-)
SHIM_HALF_BINARY(*)
SHIM_HALF_BINARY(/)
#define SHIM_HALF_COMPARE(OP) \
  static inline bool operator OP(half a, half b) { return (float)a OP(float) b; }
SHIM_HALF_COMPARE(<)
SHIM_HALF_COMPARE(>)
SHIM_HALF_COMPARE(<=)
SHIM_HALF_COMPARE(>=)
SHIM_HALF_COMPARE(==)
SHIM_HALF_COMPARE(!=)
static inline half operator-(half a) { return half(-(float)a); }
static inline half& operator+=(half& a, half b) { return a = a + b; }
static inline half& operator*=(half& a, half b) { return a = a * b; }

static inline float __half2float(half a) { return a; }
static inline half __float2half(float a) { return a; }
static inline half __float2half_rn(float a) { return a; }
static inline bool __hgt(half a, half b) { return a > b; }
static inline bool __hlt(half a, half b) { return a < b; }
static inline half __hadd(half a, half b) { return a + b; }
static inline half __hmul(half a, half b) { return a * b; }
static inline half __hfma(half a, half b, half c) { return fmaf(a, b, c); }
static inline half __habs(half a) { return fabsf(a); }
static inline half hexp(half a) { return expf(a); }
static inline half hlog(half a) { return logf(a); }
static inline half hsqrt(half a) { return sqrtf(a); }
static inline half hrsqrt(half a) { return rsqrtf(a); }
static inline half htanh(half a) { return tanhf(a); }
