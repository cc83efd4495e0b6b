// The functions of libcupti that records are read by. Plays records that a test plants, those of enabled kinds, through
// the callbacks, from a thread of its own as CUPTI may. Sizes of records are those of CUDA 13.0.

#include <ctime>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

enum { OK = 0, INVALID = 1, OPERATION = 7, NO_MORE = 12, INVALID_KIND = 21, SUBSCRIBED = 39 };
using Request = void (*)(uint8_t**, size_t*, size_t*);
using Complete = void (*)(void*, uint32_t, uint8_t*, size_t, size_t);

const std::map<uint32_t, size_t> sizes = {{1, 96}, {2, 88}, {4, 40}, {5, 40}, {10, 216}, {17, 24}};
std::map<std::string, int> failures;
std::set<int> enabled;
std::vector<std::pair<uint8_t*, size_t>> full;
uint8_t* buffer;
size_t capacity, used, dropped, limit;
uint32_t version = 130001;
int thread_ids;
void* subscriber;
Request request;
Complete complete;

#define MAY_FAIL do { auto found = failures.find(__func__); if (found != failures.end()) return found->second; } while (0)

uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return uint64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

void hand_over() {
  if (buffer != nullptr) complete(nullptr, 0, buffer, capacity, used);
  buffer = nullptr;
}

void put(const uint8_t* record, size_t size) {
  if (buffer != nullptr && used + size > capacity) hand_over();
  if (buffer == nullptr) {
    size_t most = 0;
    request(&buffer, &capacity, &most);
    used = 0;
    if (limit && capacity > limit) capacity = limit;  // as if the buffer were smaller
  }
  if (buffer == nullptr || capacity < size || (uintptr_t)buffer % 8) {
    ++dropped;
    return;
  }
  std::memcpy(buffer + used, record, size);
  used += size;
}

}  // namespace

extern "C" {

int cuptiGetVersion(uint32_t* out) { MAY_FAIL; *out = version; return OK; }
int cuptiGetResultString(int status, const char** out) {
  *out = status == SUBSCRIBED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_OF_THE_TEST";
  return OK;
}
int cuptiGetTimestamp(uint64_t* out) { MAY_FAIL; *out = now(); return OK; }
int cuptiSubscribe(void** out, void (*callback)(void*, int, uint32_t, const void*), void*) {
  MAY_FAIL;
  if (subscriber != nullptr) return SUBSCRIBED;
  if (callback == nullptr) return INVALID;
  *out = subscriber = &subscriber;
  return OK;
}
int cuptiUnsubscribe(void* one) {
  if (one == nullptr || one != subscriber) return INVALID;
  subscriber = nullptr;
  return OK;
}
int cuptiSetThreadIdType(int type) { thread_ids = type; return OK; }
int cuptiActivityRegisterCallbacks(Request r, Complete c) { request = r; complete = c; return r && c ? OK : INVALID; }
int cuptiActivityEnable(int kind) {
  MAY_FAIL;
  auto found = failures.find("kind " + std::to_string(kind));
  if (found != failures.end()) return found->second;
  enabled.insert(kind);
  return OK;
}
int cuptiActivityDisable(int kind) { enabled.erase(kind); return OK; }
int cuptiActivityFlushAll(uint32_t flag) {
  MAY_FAIL;
  if (request == nullptr) return OPERATION;
  if (flag == 1) std::thread(hand_over).join();
  return OK;
}
int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* out) { *out = dropped; dropped = 0; return OK; }
int cuptiActivityGetNextRecord(uint8_t* from, size_t valid, uint8_t** record) {
  uint8_t* next = from;
  if (*record != nullptr) next = *record + sizes.at(*(uint32_t*)*record);
  if (next >= from + valid) return NO_MORE;
  if (!sizes.count(*(uint32_t*)next)) return INVALID_KIND;
  *record = next;
  return OK;
}

void fake_reset() {
  failures.clear(); enabled.clear(); buffer = nullptr; dropped = limit = used = capacity = 0; version = 130001;
  thread_ids = 0; subscriber = nullptr; request = nullptr; complete = nullptr;
}
void fake_fail(const char* what, int status) { failures[what] = status; }
void fake_version(uint32_t v) { version = v; }
void fake_limit(size_t bytes) { limit = bytes; }
void fake_drop(size_t records) { dropped += records; }
size_t fake_enabled() { return enabled.size(); }
int fake_thread_ids() { return thread_ids; }
// A record that something of its kind made: on the thread that calls this, as a launch is.
int fake_happened(const uint8_t* record, size_t size) {
  uint32_t kind = *(const uint32_t*)record;
  if (kind != 17 && !enabled.count(int(kind))) return 0;
  uint8_t whole[256] = {};
  std::memcpy(whole, record, size);
  put(whole, sizes.count(kind) ? sizes.at(kind) : size);
  return 1;
}
}
