// All mutants of a kernel in one text (mutation.py): which of them runs is chosen when it does.
#pragma once

extern "C" {
int shim_mutant = -1, shim_mutant_by = 0;
// Whether a bound that is one smaller, or one larger, has once made a difference to what it is compared with.
unsigned char shim_differs[2 * 8192];
}

#define SHIM_UNSEEN static __attribute__((no_sanitize_thread))

SHIM_UNSEEN bool shim_kept(int number) { return shim_mutant != number; }

struct ShimBound {
  int value, number;
};
template <class F>
SHIM_UNSEEN auto shim_with(ShimBound b, F compare) {
  const auto found = compare(b.value);
  shim_differs[2 * b.number] |= compare(b.value - 1) != found;
  shim_differs[2 * b.number + 1] |= compare(b.value + 1) != found;
  return shim_mutant == b.number ? compare(b.value + shim_mutant_by) : found;
}
SHIM_UNSEEN bool operator<(int x, ShimBound b) { return shim_with(b, [=](int n) { return x < n; }); }
SHIM_UNSEEN bool operator<=(ShimBound b, int x) { return shim_with(b, [=](int n) { return n <= x; }); }
SHIM_UNSEEN int min(int x, ShimBound b) { return shim_with(b, [=](int n) { return x < n ? x : n; }); }
SHIM_UNSEEN int max(int x, ShimBound b) { return shim_with(b, [=](int n) { return x < n ? n : x; }); }
SHIM_UNSEEN int min(ShimBound b, int x) { return min(x, b); }
SHIM_UNSEEN int max(ShimBound b, int x) { return max(x, b); }
