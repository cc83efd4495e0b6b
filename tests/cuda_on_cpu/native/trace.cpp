#include "trace.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "block.h"
#include "memory.h"

namespace shim {

bool tracing = false;

namespace {

std::vector<Access> accesses;

void take_value(Access& a) { std::memcpy(a.value, (const void*)a.address, std::min<size_t>(a.bytes, sizeof a.value)); }

// What was written is known when the next thing happens.
void settle_last() {
  if (!accesses.empty() && accesses.back().kind & WRITE) take_value(accesses.back());
}

}  // namespace

void trace_access(const void* address, size_t bytes, bool write) {
  settle_last();
  const Dim3 &b = current->block, &g = current->grid_dim;
  const Region* region = find((const char*)address);
  const uint8_t kind = (write ? WRITE : READ) | (region && region->name ? SHARED : 0);
  accesses.push_back({(uint64_t)address, {}, b.x + g.x * (b.y + g.y * b.z), (uint16_t)current->index,
                      (uint8_t)std::min<size_t>(bytes, 255), kind});
  if (!write) take_value(accesses.back());
}

void trace_barrier(uint32_t block, int line) {
  settle_last();
  accesses.push_back({(uint64_t)line, {}, block, 0, 0, BARRIER});
}

}  // namespace shim

extern "C" void shim_trace() { shim::tracing = true, shim::accesses.clear(); }
extern "C" const shim::Access* shim_traced(std::size_t* count) {
  shim::settle_last();
  shim::tracing = false;
  return *count = shim::accesses.size(), shim::accesses.data();
}
