// What the text of a kernel and the shim know of each other.
#pragma once
#include <cstddef>

namespace shim {

struct Dim3 {
  unsigned x, y, z;
};

// A thread of a block, as the kernel sees it; ``index`` counts threadIdx.x first.
struct Thread {
  Dim3 thread, block, block_dim, grid_dim;
  unsigned index;
};

struct Parameter {
  const char* name;
  bool pointer;
};

// One entry of a module: written behind its definition when the text is translated.
struct Kernel {
  const char* name;
  unsigned max_threads;  // its __launch_bounds__
  void (*call)(void** arguments);
  unsigned parameters;
  const Parameter* parameter;
};

}  // namespace shim

// All of it returns by value: what a kernel reads through a pointer is checked to be memory of the device.
extern "C" {
shim::Thread shim_thread();
unsigned shim_index();
void shim_barrier(int line);
void shim_warp(unsigned mask, int line, bool orders_memory);
unsigned shim_active_lanes();
// The value of lane ``source`` of the warp's segment; all ones where that lane takes no part.
unsigned long long shim_shuffle(unsigned mask, unsigned long long value, int source, int line);
// Shows a pointer to the other lanes of the warp, all 32 of which must come, and gives theirs.
void shim_show(const void* mine, const void** all, int line);
// What the address of a matrix, and the bytes of its stride, must be a multiple of.
void shim_multiple(std::size_t value, std::size_t alignment, int line);
[[noreturn]] void shim_no_element(long index, long count);
void* shim_shared(const char* name, std::size_t bytes, std::size_t alignment);
void* shim_dynamic_shared();
void shim_copy_async(void* target, const void* source, int bytes);
void shim_commit_copies();
void shim_wait_copies(int groups);
}
