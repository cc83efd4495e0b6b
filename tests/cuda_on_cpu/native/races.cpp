#include "races.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "block.h"
#include "memory.h"
#include "report.h"
#include "trace.h"

namespace shim {

Now now;

namespace {

// Codes of a stamp's thread, where it is not one.
constexpr uint32_t WARP = 0x400;  // + warp: several threads of that warp
constexpr uint32_t IN_FLIGHT = 0xffb, OTHER_BLOCK = 0xffc, DISJOINT = 0xffd, SEVERAL = 0xfff;

std::string describe(uint32_t thread) {
  if (thread == OTHER_BLOCK) return "a thread of another block";
  if (thread == SEVERAL || thread == DISJOINT) return "other threads of the block";
  if (thread >= WARP) return "other threads of warp " + std::to_string(thread - WARP);
  return "thread " + std::to_string(thread) + " of the block";
}

// Happened in this launch, by another thread, with no barrier between that both took part in.
bool concurrent(const Stamp& s) {
  if (s.thread == IN_FLIGHT) return true;
  if (s.epoch < now.launch_start) return false;
  if (s.epoch < now.block_start || s.thread == OTHER_BLOCK) return true;
  if (s.epoch != now.epoch || s.thread == DISJOINT || s.thread == now.thread) return false;
  if (s.thread == SEVERAL) return true;
  const uint32_t warp = s.thread >= WARP ? s.thread - WARP : s.thread / 32;
  return warp != now.thread / 32 || s.warp_epoch == now.warp_epoch;
}

[[noreturn]] void race(const Region& r, const char* p, bool write, const Stamp& other, bool wrote, const void* code) {
  const size_t at = p - r.begin;
  if (other.thread == IN_FLIGHT)
    fail("Race", code, "%s byte %zu of %s, which cp.async has not been waited for", write ? "writes" : "reads", at,
         name_of(r).c_str());
  const std::string who = other.epoch < now.block_start ? "a thread of another block" : describe(other.thread);
  fail("Race", code, "%s byte %zu of %s, which %s %s with no barrier between", write ? "writes" : "reads", at,
       name_of(r).c_str(), who.c_str(), wrote ? "wrote" : "read");
}

Stamp stamp(uint32_t bytes, uint32_t ever) {
  Stamp s;
  s.epoch = now.epoch, s.warp_epoch = now.warp_epoch, s.thread = now.thread, s.fresh = bytes, s.ever = ever;
  return s;
}

// Of what lived in shared memory in earlier blocks, nothing is left.
void refresh(Word& w) {
  if (w.write.epoch < now.block_start && w.write.thread != IN_FLIGHT) w.write = {};
  if (w.read.epoch < now.block_start) w.read = {};
}

void note_read(Stamp& s, uint32_t bytes) {
  if (s.epoch < now.launch_start || (s.epoch >= now.block_start && s.epoch != now.epoch && s.thread != OTHER_BLOCK)) {
    s = stamp(bytes, 0);
  } else if (s.epoch < now.block_start || s.thread == OTHER_BLOCK) {
    s.thread = OTHER_BLOCK, s.epoch = now.epoch, s.fresh |= bytes;
  } else if (s.thread == now.thread) {
    s.fresh |= bytes, s.warp_epoch = now.warp_epoch;
  } else {
    const uint32_t mine = now.thread / 32, warp = s.thread >= WARP ? s.thread - WARP : s.thread / 32;
    if (s.thread == SEVERAL || warp != mine)
      s.thread = SEVERAL;
    else if (s.warp_epoch != now.warp_epoch)
      s.thread = now.thread, s.warp_epoch = now.warp_epoch;
    else
      s.thread = WARP + mine;
    s.fresh |= bytes;
  }
}

void note_write(Stamp& s, uint32_t bytes) {
  const uint32_t ever = s.ever | bytes;
  if (s.epoch == now.epoch && s.thread != now.thread && !(s.fresh & bytes)) {
    s.thread = DISJOINT, s.fresh |= bytes, s.ever = ever;
  } else {
    const uint32_t kept = s.epoch == now.epoch && s.thread == now.thread ? (uint32_t)s.fresh : 0u;
    s = stamp(kept | bytes, ever);
  }
}

// A write over another thread's: harmless if it writes the same, which is known when it is done.
struct {
  bool waits = false;
  char* at;
  size_t bytes;
  char old[16];
  Region* region;
  Stamp other;
  const void* code;
} over;

void check_word(Region& r, Word& w, const char* p, uint32_t bytes, bool write, const void* code, bool& overwrites) {
  if (r.name) refresh(w);
  if (w.write.fresh & bytes && concurrent(w.write)) {
    if (!write || w.write.thread == IN_FLIGHT) race(r, p, write, w.write, true, code);
    overwrites = true;
    over.other = w.write;
  }
  if (write) {
    if (w.read.fresh & bytes && concurrent(w.read)) race(r, p, write, w.read, false, code);
    note_write(w.write, bytes);
  } else {
    if ((w.write.ever & bytes) != bytes)
      fail("Uninitialised", code, "reads byte %zu of %s, which nothing has written", p - r.begin, name_of(r).c_str());
    note_read(w.read, bytes);
  }
}

}  // namespace

void settle() {
  if (!over.waits) return;
  over.waits = false;
  if (std::memcmp(over.at, over.old, over.bytes)) race(*over.region, over.at, true, over.other, true, over.code);
}

void check(const void* address, size_t bytes, bool write, const void* code) {
  const char* p = (const char*)address;
  settle();
  if (on_stack(p)) return;
  Region* r = find(p);
  if (!r || p + bytes > r->end()) bad_address(address, bytes, write, code);
  if (bytes <= 16 && !(bytes & (bytes - 1)) && (uintptr_t)p % bytes)
    fail("Misaligned", code, "%s %zu bytes at byte %zu of %s, which is no multiple of %zu", write ? "writes" : "reads",
         bytes, p - r->begin, name_of(*r).c_str(), bytes);
  if (tracing) trace_access(p, bytes, write);
  bool overwrites = false;
  for (size_t at = p - r->begin, end = at + bytes; at < end;) {
    const size_t word = at / 4, next = std::min(end, (word + 1) * 4);
    const uint32_t mask = ((1u << (next - at)) - 1) << at % 4;
    check_word(*r, r->words[word], r->begin + at, mask, write, code, overwrites);
    at = next;
  }
  if (overwrites && bytes <= sizeof over.old) {
    over.waits = true, over.at = (char*)p, over.bytes = bytes, over.region = r, over.code = code;
    std::memcpy(over.old, p, bytes);
  }
}

namespace {
template <class F>
void each_word(void* target, size_t bytes, F body) {
  Region* r = find((char*)target);
  const size_t first = ((char*)target - r->begin) / 4;
  for (size_t i = 0; i < bytes / 4; ++i) body(r->words[first + i].write);
}
}  // namespace

void depart(void* target, size_t bytes) {
  each_word(target, bytes, [](Stamp& s) { s.thread = IN_FLIGHT; });
}

void arrive(void* target, size_t bytes) {
  each_word(target, bytes, [](Stamp& s) { s = stamp(15, 15); });
}

}  // namespace shim
