// The products of tensor cores by their C++ interface. Which lane holds which element of a fragment is not told on the
// hardware either; here element e is in lane e % 32. Inputs are rounded as there, sums are in float.
#pragma once
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
namespace precision {
struct tf32;
}
enum layout_t { mem_row_major, mem_col_major };

template <class T>
struct shim_stored {
  using type = T;
};
template <>
struct shim_stored<precision::tf32> {
  using type = float;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr bool a = std::is_same_v<Use, matrix_a>, b = std::is_same_v<Use, matrix_b>;
  static constexpr int rows = b ? K : M, columns = a ? K : N, num_elements = rows * columns / 32;
  using value = typename shim_stored<T>::type;
  value x[num_elements];
};

static inline float __float_to_tf32(float a) { return __int_as_float((__float_as_int(a) + 0x1000) & ~0x1fff); }

template <class T>
static inline float shim_tf32(float a) {
  return std::is_same_v<T, precision::tf32> ? __int_as_float(__float_as_int(a) & ~0x1fff) : a;
}

template <class F, class P>
static inline void shim_each(F& f, P* p, unsigned stride, bool by_rows, bool load, int line) {
  shim_multiple((std::size_t)p, 32, line);
  shim_multiple(stride * sizeof(*p), 16, line);
  shim_warp(~0u, line, false);
  for (int s = 0; s < F::num_elements; ++s) {
    const unsigned e = shim_lane() + 32 * s, i = e / F::columns, j = e % F::columns;
    P& place = p[by_rows ? i * stride + j : j * stride + i];
    if (load)
      f.x[s] = place;
    else
      const_cast<std::remove_const_t<P>&>(place) = f.x[s];
  }
  shim_warp(~0u, line, false);
}

template <class U, int M, int N, int K, class T, class L, class P>
static inline void load_matrix_sync(fragment<U, M, N, K, T, L>& f, const P* p, unsigned stride,
                                    int line = __builtin_LINE()) {
  shim_each(f, p, stride, std::is_same_v<L, row_major>, true, line);
}
template <int M, int N, int K, class T, class P>
static inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const P* p, unsigned stride, layout_t layout,
                                    int line = __builtin_LINE()) {
  shim_each(f, p, stride, layout == mem_row_major, true, line);
}
template <int M, int N, int K, class T, class P>
static inline void store_matrix_sync(P* p, fragment<accumulator, M, N, K, T>& f, unsigned stride, layout_t layout,
                                     int line = __builtin_LINE()) {
  shim_each(f, p, stride, layout == mem_row_major, false, line);
}
template <class U, int M, int N, int K, class T, class L, class V>
static inline void fill_fragment(fragment<U, M, N, K, T, L>& f, V value, int line = __builtin_LINE()) {
  shim_warp(~0u, line, false);
  for (auto& x : f.x) x = value;
}

// An element of a matrix that a warp holds. The other lanes' are on their stacks: not checked, as these are registers.
template <class F>
__attribute__((no_sanitize_thread, noinline)) static typename F::value shim_element(const void* const* all, int e) {
  typename F::value v;
  __builtin_memcpy(&v, &static_cast<const F*>(all[e % 32])->x[e / 32], sizeof v);
  return v;
}

template <int M, int N, int K, class T, class LA, class LB, class S>
static inline void mma_sync(fragment<accumulator, M, N, K, S>& d, const fragment<matrix_a, M, N, K, T, LA>& a,
                            const fragment<matrix_b, M, N, K, T, LB>& b, const fragment<accumulator, M, N, K, S>& c,
                            int line = __builtin_LINE()) {
  using A = fragment<matrix_a, M, N, K, T, LA>;
  using B = fragment<matrix_b, M, N, K, T, LB>;
  const void *as[32], *bs[32];
  shim_show(&a, as, line);
  shim_show(&b, bs, line);
  S sums[fragment<accumulator, M, N, K, S>::num_elements];
  for (int s = 0; s < c.num_elements; ++s) {
    const int e = shim_lane() + 32 * s;
    float sum = c.x[s];
    for (int k = 0; k < K; ++k)
      sum += shim_tf32<T>(shim_element<A>(as, e / N * K + k)) * shim_tf32<T>(shim_element<B>(bs, k * N + e % N));
    sums[s] = sum;
  }
  shim_warp(~0u, line, false);  // until then the fragments must stay as they are
  for (int s = 0; s < c.num_elements; ++s) d.x[s] = sums[s];
}

}  // namespace wmma
}  // namespace nvcuda
