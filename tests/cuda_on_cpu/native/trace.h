// What the threads of a launch do to memory, in their order, for whoever asks for it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shim {

struct Access {
  uint64_t address;  // of a barrier: its line
  unsigned char value[16];
  uint32_t block;
  uint16_t thread;
  uint8_t bytes, kind;  // READ or WRITE, and whether to SHARED memory; or BARRIER
};
enum Kind : uint8_t { READ, WRITE, BARRIER, SHARED = 4 };

extern bool tracing;
// An access that is about to happen, or a barrier that all threads of a block have reached.
void trace_access(const void* address, size_t bytes, bool write);
void trace_barrier(uint32_t block, int line);

}  // namespace shim
