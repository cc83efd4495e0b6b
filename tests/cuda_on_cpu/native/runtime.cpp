// libcudart: what of the runtime TVM's runtime calls.
#include <cstdlib>
#include <cstring>

#include "memory.h"
#include "report.h"
#include "streams.h"

using namespace shim;

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, NOT_SUPPORTED = 801 };
enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };  // cudaMemcpyKind
constexpr size_t MEMORY = 8ull << 30;

// Leading members of cudaDeviceProp; the rest is left alone.
struct Properties {
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t total_bytes;
};
}  // namespace

#define API extern "C" int

API cudaMalloc(void** p, size_t bytes) { return (*p = allocate(bytes)) ? SUCCESS : OUT_OF_MEMORY; }
API cudaFree(void* p) { return synchronize_all(), !p || release(p) ? SUCCESS : INVALID_VALUE; }
API cudaMallocHost(void** p, size_t bytes) { return (*p = std::malloc(bytes)) ? SUCCESS : OUT_OF_MEMORY; }
API cudaFreeHost(void* p) { return std::free(p), SUCCESS; }
API cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, Stream* stream) {
  enqueue(stream, 0);
  if (kind == TO_HOST) synchronize(stream);  // the host's memory is no page of the driver's
  if (kind == TO_HOST || kind == ON_DEVICE) check_host_access(from, bytes, "reads");
  if (kind == TO_DEVICE || kind == ON_DEVICE) host_wrote(to, bytes);
  std::memmove(to, from, bytes);
  return SUCCESS;
}
API cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, Stream* stream) {
  return cudaMemcpyAsync(to, from, bytes, ON_DEVICE, stream);
}
API cudaMemGetInfo(size_t* free, size_t* total) { return *free = *total = MEMORY, SUCCESS; }
API cudaGetDevice(int* device) { return *device = 0, SUCCESS; }
API cudaSetDevice(int) { return SUCCESS; }
API cudaGetDeviceCount(int* n) { return *n = 1, SUCCESS; }
API cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {  // cudaDeviceAttr
    case 1: case 2: case 3: *value = 1024; break;  // threads of a block, along x and y
    case 4: *value = 64; break;                    // along z
    case 5: *value = 0x7fffffff; break;            // blocks of a grid
    case 6: case 7: *value = 65535; break;
    case 8: *value = 48 << 10; break;    // static shared memory of a block
    case 10: *value = 32; break;         // threads of a warp
    case 12: *value = 64 << 10; break;   // registers of a block
    case 13: *value = 1000000; break;    // kHz
    case 16: *value = 1; break;          // multiprocessors
    case 38: *value = 64 << 10; break;   // bytes of the level-2 cache
    case 75: *value = settings.capability / 10; break;
    case 76: *value = settings.capability % 10; break;
    case 97: *value = (int)shared_limit(); break;  // shared memory that a block can ask for
    default: *value = 0;
  }
  return SUCCESS;
}
API cudaGetDeviceProperties(Properties* p, int) {
  std::strcpy(p->name, "CUDA on the CPU");
  p->total_bytes = MEMORY;
  return SUCCESS;
}
API cudaGetLastError() { return SUCCESS; }
API cudaPeekAtLastError() { return SUCCESS; }
extern "C" const char* cudaGetErrorName(int) { return "an error of the shim"; }
extern "C" const char* cudaGetErrorString(int) { return "an error of the shim"; }
API cudaStreamCreate(Stream** s) { return *s = make_stream(true), SUCCESS; }
API cudaStreamCreateWithFlags(Stream** s, unsigned flags) { return *s = make_stream(!(flags & 1)), SUCCESS; }
API cudaStreamDestroy(Stream* s) { return drop_stream(s), SUCCESS; }
API cudaStreamSynchronize(Stream* s) { return synchronize(s), SUCCESS; }
API cudaStreamWaitEvent(Stream* s, Event* e, unsigned) { return wait_for(s, *e), SUCCESS; }
API cudaEventCreate(Event** e) { return *e = new Event, SUCCESS; }
API cudaEventDestroy(Event* e) { return delete e, SUCCESS; }
API cudaEventRecord(Event* e, Stream* s) { return record(*e, s), SUCCESS; }
API cudaEventSynchronize(Event* e) { return synchronize(*e), SUCCESS; }
API cudaEventElapsedTime(float* ms, Event* start, Event* end) {
  if (!passed(*start) || !passed(*end)) return NOT_READY;
  return *ms = 1e-3f * ((double)end->at - (double)start->at), SUCCESS;
}
API cudaStreamBeginCapture(void*, int) { return NOT_SUPPORTED; }
API cudaStreamEndCapture(void*, void**) { return NOT_SUPPORTED; }
API cudaGraphInstantiate(void**, void*, unsigned long long) { return NOT_SUPPORTED; }
API cudaGraphLaunch(void*, void*) { return NOT_SUPPORTED; }
API cudaGraphDestroy(void*) { return SUCCESS; }
API cudaGraphExecDestroy(void*) { return SUCCESS; }
