// Device memory: buffers in global memory, and the shared memory of the block that runs.
#pragma once
#include <cstddef>
#include <string>

#include "races.h"

namespace shim {

struct Region {
  char* begin = nullptr;
  size_t bytes = 0;
  const char* name = nullptr;  // of a shared array; one in global memory is named by the kernel's parameters
  Word* words = nullptr;
  char* end() const { return begin + bytes; }
};

// The buffer or array that an address is in, or null; and what to call it.
Region* find(const char* address);
std::string name_of(const Region& region);

// Global memory. Pages before and behind it are inaccessible.
void* allocate(size_t bytes);
bool release(void* pointer);
void host_wrote(void* pointer, size_t bytes);
void check_host_access(const void* pointer, size_t bytes, const char* what);

// Shared memory of the block that runs.
void begin_block(size_t dynamic_bytes);
void* shared_array(const char* name, size_t bytes, size_t alignment);
void* dynamic_shared();
size_t shared_limit();

[[noreturn]] void bad_address(const void* address, size_t bytes, bool write, const void* code);

}  // namespace shim
