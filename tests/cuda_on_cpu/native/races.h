// What is known of each word of device memory: who wrote it, who read it, since which barrier.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shim {

// Who touched a word, and when. Epochs count the barriers of all blocks of all launches; a warp counts its own.
struct Stamp {
  uint32_t epoch;
  uint32_t warp_epoch : 12, thread : 12;  // a thread of its block, or one of the codes in races.cpp
  uint32_t fresh : 4;                     // bytes of the word that were touched so
  uint32_t ever : 4;                      // bytes that have a value at all
};
struct Word {
  Stamp write, read;
};

// The moment at which the running thread stands.
struct Now {
  uint32_t launch_start, block_start, epoch;  // epochs
  uint32_t warp_epoch, thread;
};
extern Now now;

// Every access of a kernel, before it happens. ``code`` is where in the kernel.
void check(const void* address, size_t bytes, bool write, const void* code);
// Whether the last write, if another thread wrote there too, wrote the same; called when the thread goes on or waits.
void settle();
// A word is on its way there: nobody may touch it before it has arrived.
void depart(void* target, size_t bytes);
void arrive(void* target, size_t bytes);

}  // namespace shim
