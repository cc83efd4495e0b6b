// The threads of one block, as fibers: each runs until it must wait for others.
#pragma once
#include <cstddef>

#include "device/shim.h"

namespace shim {

extern const Kernel* launched;  // while its blocks run
extern void** arguments;
extern Thread* current;  // null while none runs

// Runs all blocks of a grid, one after another. Ends the process where a kernel does what no kernel may.
void launch(const Kernel& kernel, const Dim3& grid, const Dim3& block, size_t dynamic_shared, void** arguments);

// Whether this is memory of the running thread alone.
bool on_stack(const void* address);
// Whether it would be, had a thread more local memory than it has here.
bool beyond_stack(const void* address);

}  // namespace shim
