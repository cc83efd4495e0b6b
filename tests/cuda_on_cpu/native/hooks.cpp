// The functions that g++ calls before each access with -fsanitize=thread, and where -fsanitize=alignment,bounds finds
// something. Only the kernels are compiled so: the sanitizers' own runtime libraries are not used.
#include <cstdint>

#include "races.h"
#include "report.h"

using shim::check;

#define HOOK extern "C" void
#define ACCESS(SIZE)                                                                                             \
  HOOK __tsan_read##SIZE(void* p) { check(p, SIZE, false, __builtin_return_address(0)); }                        \
  HOOK __tsan_write##SIZE(void* p) { check(p, SIZE, true, __builtin_return_address(0)); }                        \
  HOOK __tsan_unaligned_read##SIZE(void* p) { check(p, SIZE, false, __builtin_return_address(0)); }              \
  HOOK __tsan_unaligned_write##SIZE(void* p) { check(p, SIZE, true, __builtin_return_address(0)); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
HOOK __tsan_read_range(void* p, unsigned long n) { check(p, n, false, __builtin_return_address(0)); }
HOOK __tsan_write_range(void* p, unsigned long n) { check(p, n, true, __builtin_return_address(0)); }
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void*) {}
HOOK __tsan_func_exit() {}

// What the compiler says of the place; the leading members of its records.
struct Place {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;
  char name[1];
};
struct Mismatch {
  Place place;
  const Type* type;
  unsigned char log_alignment, kind;
};
struct Bounds {
  Place place;
  const Type *array, *index;
};

HOOK __ubsan_handle_type_mismatch_v1_abort(Mismatch* what, uintptr_t address) {
  const unsigned long alignment = 1ul << what->log_alignment;
  shim::fail("Misaligned", __builtin_return_address(0), "takes address %% %lu = %lu for a %s", alignment,
             (unsigned long)(address % alignment), what->type->name);
}
HOOK __ubsan_handle_out_of_bounds_abort(Bounds* what, uintptr_t index) {
  shim::fail("OutOfBounds", __builtin_return_address(0), "takes element %ld of a %s", (long)(int32_t)index,
             what->array->name);
}

extern "C" void shim_no_element(long index, long count) {
  shim::fail("OutOfBounds", __builtin_return_address(0), "takes element %ld of %ld of an array of its own", index,
             count);
}
