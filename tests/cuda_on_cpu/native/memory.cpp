#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "block.h"
#include "report.h"

namespace shim {

namespace {

constexpr size_t PAGE = 4096, GUARD = 16 * PAGE, ALIGNMENT = 256;
constexpr int POISON = 0xff;  // a NaN
// A gap behind each shared array, so that a step too far is seen. Real hardware has none: it counts for no limit.
constexpr size_t GAP = 256, ARENA = 1 << 20;
constexpr size_t STATIC_LIMIT = 48 << 10;

std::map<char*, Region> allocations;  // by begin
Region* recent[2];                    // the regions met last: kernels read and write in turn

size_t arena_used = 0, static_bytes = 0;
std::vector<Region> shared;
Region dynamic;

char* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : (char*)p;
}

size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t word_bytes(size_t bytes) { return up(up(bytes, 4) / 4 * sizeof(Word), PAGE); }

// There from the beginning, so that it is at the same place in all forks.
char* arena = reserve(ARENA);
Word* arena_words = (Word*)reserve(word_bytes(ARENA));

void forget_recent() { recent[0] = recent[1] = nullptr; }

}  // namespace

Region* find(const char* p) {
  for (Region* r : recent)
    if (r && p >= r->begin && p < r->end()) return r;
  Region* found = nullptr;
  if (arena && p >= arena && p < arena + ARENA) {
    for (Region& r : shared)
      if (p >= r.begin && p < r.end()) found = &r;
    if (p >= dynamic.begin && p < dynamic.end()) found = &dynamic;
  } else {
    auto after = allocations.upper_bound((char*)p);
    if (after != allocations.begin() && p < std::prev(after)->second.end()) found = &std::prev(after)->second;
  }
  if (found) recent[1] = recent[0], recent[0] = found;
  return found;
}

std::string name_of(const Region& r) {
  if (r.name) return std::string("shared memory ") + r.name;
  for (unsigned i = 0; launched && i < launched->parameters; ++i)
    if (launched->parameter[i].pointer) {
      const char* p = *(char**)arguments[i];
      if (p >= r.begin && p < r.end()) return launched->parameter[i].name;
    }
  return "a buffer that no parameter points to";
}

void bad_address(const void* address, size_t bytes, bool write, const void* code) {
  const char* p = (const char*)address;
  const char* verb = write ? "writes" : "reads";
  if (beyond_stack(p)) fail("OutOfBounds", code, "has more local memory than the 256 KiB of a thread here");
  // The region whose end, or beginning, is nearest.
  const Region* nearest = nullptr;
  size_t least = SIZE_MAX;
  auto consider = [&](const Region& r) {
    const size_t distance = p >= r.begin ? p + bytes - r.end() : r.begin - p;
    if (distance < least) least = distance, nearest = &r;
  };
  if (arena && p >= arena && p < arena + ARENA) {
    for (const Region& r : shared) consider(r);
    if (dynamic.bytes) consider(dynamic);
  } else {
    for (const auto& a : allocations) consider(a.second);
  }
  if (!nearest || least > (64u << 20))
    fail("OutOfBounds", code, "%s %zu bytes at no memory of the device", verb, bytes);
  if (p < nearest->begin)
    fail("OutOfBounds", code, "%s %zu bytes that begin %zu bytes before %s", verb, bytes, least,
         name_of(*nearest).c_str());
  fail("OutOfBounds", code, "%s %zu bytes that end %zu bytes behind %s, which has %zu bytes", verb, bytes, least,
       name_of(*nearest).c_str(), nearest->bytes);
}

// ------------------------------------------------------------------------------------------------ global memory

void* allocate(size_t bytes) {
  // Right before the guard, as far as the alignment lets it; the checks are exact, the guards are for the rest.
  const size_t body = up(std::max<size_t>(bytes, 1), ALIGNMENT), room = up(body, PAGE);
  char* base = reserve(room + 2 * GUARD);
  char* words = reserve(word_bytes(bytes) + PAGE);
  if (!base || !words) return nullptr;
  mprotect(base, GUARD, PROT_NONE);
  mprotect(base + GUARD + room, GUARD, PROT_NONE);
  Region r;
  r.begin = base + GUARD + room - body, r.bytes = bytes, r.words = (Word*)words;
  std::memset(r.begin, POISON, body);
  allocations[r.begin] = r;
  return r.begin;
}

bool release(void* pointer) {
  auto found = allocations.find((char*)pointer);
  if (found == allocations.end()) return false;
  const Region& r = found->second;
  const size_t body = up(std::max<size_t>(r.bytes, 1), ALIGNMENT), room = up(body, PAGE);
  munmap(r.begin + body - room - GUARD, room + 2 * GUARD);
  munmap(r.words, word_bytes(r.bytes) + PAGE);
  forget_recent();
  allocations.erase(found);
  return true;
}

void check_host_access(const void* pointer, size_t bytes, const char* what) {
  const char* p = (const char*)pointer;
  const Region* r = find(p);
  if (bytes && (!r || p + bytes > r->end()))
    fail("OutOfBounds", nullptr, "the host %s %zu bytes of device memory, which are not in one buffer", what, bytes);
}

void host_wrote(void* pointer, size_t bytes) {
  check_host_access(pointer, bytes, "writes");
  if (!bytes) return;
  const Region* r = find((char*)pointer);
  for (size_t at = (char*)pointer - r->begin, end = at + bytes; at < end;) {
    const size_t word = at / 4, next = std::min(end, (word + 1) * 4);
    Stamp& s = r->words[word].write;
    s = {0, 0, 0, 0, s.ever | ((1u << (next - at)) - 1) << at % 4};
    at = next;
  }
}

// ------------------------------------------------------------------------------------------------ shared memory

size_t shared_limit() {
  switch (settings.capability) {
    case 70: return 96 << 10;
    case 75: return 64 << 10;
    case 80: case 87: return 163 << 10;
    case 86: case 89: return 99 << 10;
    default: return settings.capability >= 90 ? 227 << 10 : 48 << 10;
  }
}

void begin_block(size_t dynamic_bytes) {
  std::memset(arena, POISON, arena_used);
  forget_recent();
  shared.clear();
  dynamic.begin = arena, dynamic.bytes = dynamic_bytes, dynamic.name = "(dynamic)", dynamic.words = arena_words;
  arena_used = up(dynamic_bytes, ALIGNMENT) + (dynamic_bytes ? GAP : 0);
  static_bytes = 0;
  std::memset(arena, POISON, arena_used);
}

void* dynamic_shared() { return dynamic.begin; }

void* shared_array(const char* name, size_t bytes, size_t alignment) {
  for (const Region& r : shared)
    if (r.name == name) return r.begin;
  static_bytes = up(static_bytes, alignment) + bytes;
  if (static_bytes > STATIC_LIMIT || static_bytes + dynamic.bytes > shared_limit())
    fail("BadLaunch", nullptr,
         "wants %zu bytes of static and %zu of dynamic shared memory; sm_%d has %zu static, %zu in all", static_bytes,
         dynamic.bytes, settings.capability, STATIC_LIMIT, shared_limit());
  Region r;
  r.begin = arena + arena_used, r.bytes = bytes, r.name = name, r.words = arena_words + arena_used / 4;
  arena_used += up(bytes, ALIGNMENT) + GAP;
  std::memset(r.begin, POISON, up(bytes, ALIGNMENT) + GAP);
  shared.push_back(r);
  forget_recent();  // the vector may have moved
  return r.begin;
}

}  // namespace shim

extern "C" {
void* shim_shared(const char* name, size_t bytes, size_t alignment) {
  return shim::shared_array(name, bytes, alignment);
}
void* shim_dynamic_shared() { return shim::dynamic_shared(); }
}
