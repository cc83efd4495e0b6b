// libcuda: what of the driver TVM's runtime calls. Modules are shared objects; their image is their path.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "block.h"
#include "memory.h"
#include "report.h"
#include "streams.h"

using namespace shim;

namespace {
enum {
  SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600,
  NOT_SUPPORTED = 801
};
constexpr int MAX_DYNAMIC_SHARED = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr size_t UNASKED = 48 << 10;   // dynamic shared memory that needs no attribute

struct Function {
  const Kernel* kernel;
  size_t allowed;
};
// CUlaunchConfig
struct LaunchConfig {
  Dim3 grid, block;
  unsigned shared_bytes;
  Stream* stream;
  void* attributes;
  unsigned attribute_count;
};
}  // namespace

#define API extern "C" int

// Asked by who looks for a GPU without the runtime.
API cuInit(unsigned) { return SUCCESS; }
API cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
API cuModuleLoadData(void** module, const void* image) {
  static const char MARK[] = "CUDA-ON-CPU:";
  const char* text = (const char*)image;
  if (std::strncmp(text, MARK, sizeof MARK - 1)) return INVALID_IMAGE;
  *module = dlopen(text + sizeof MARK - 1, RTLD_NOW | RTLD_LOCAL);
  if (!*module) fail("BadLaunch", nullptr, "the compiled kernels can't be loaded: %s", dlerror());
  return SUCCESS;
}
API cuModuleUnload(void*) { return SUCCESS; }
API cuModuleGetFunction(void** function, void* module, const char* name) {
  auto* kernel = (const Kernel*)dlsym(module, (std::string("shim_kernel_") + name).c_str());
  if (!kernel) return NOT_FOUND;
  *function = new Function{kernel, UNASKED};
  return SUCCESS;
}
API cuFuncSetAttribute(Function* f, int attribute, int value) {
  if (attribute != MAX_DYNAMIC_SHARED) return SUCCESS;
  launched = f->kernel;
  if (value < 0 || (size_t)value > shared_limit())
    fail("BadLaunch", nullptr, "wants %d bytes of dynamic shared memory; sm_%d has %zu", value, settings.capability,
         shared_limit());
  launched = nullptr;
  f->allowed = value;
  return SUCCESS;
}
API cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** parameters, void**) {
  launched = f->kernel;
  if (c->shared_bytes > UNASKED && c->shared_bytes > f->allowed)
    fail("BadLaunch", nullptr, "wants %u bytes of dynamic shared memory without having asked for more than %zu",
         c->shared_bytes, f->allowed);
  const Time threads = 1ull * c->grid.x * c->grid.y * c->grid.z * c->block.x * c->block.y * c->block.z;
  launch(*f->kernel, c->grid, c->block, c->shared_bytes, parameters);
  return enqueue(c->stream, threads), SUCCESS;
}
API cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, size, "CUDA on the CPU");
  return SUCCESS;
}
API cuGetErrorName(int code, const char** name) {
  static char text[32];
  std::snprintf(text, sizeof text, "CUDA_ERROR_%d", code);
  *name = text;
  return SUCCESS;
}
API cuGetErrorString(int code, const char** text) { return cuGetErrorName(code, text); }
API cuTensorMapEncodeTiled(void*, ...) { return NOT_SUPPORTED; }

// Streams and events, for who times what others launch. There is one context.
static char the_context;
API cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
API cuDeviceGet(int* device, int index) { return *device = index, index ? INVALID_DEVICE : SUCCESS; }
API cuDevicePrimaryCtxRetain(void** context, int) { return *context = &the_context, SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuCtxPushCurrent_v2(void*) { return SUCCESS; }
API cuCtxPopCurrent_v2(void** context) { return *context = &the_context, SUCCESS; }
API cuCtxRecordEvent(void*, Event* e) { return record_all(*e), SUCCESS; }
API cuCtxWaitEvent(void*, Event* e) { return all_wait_for(*e), SUCCESS; }
API cuStreamCreate(Stream** s, unsigned flags) { return *s = make_stream(!(flags & 1)), SUCCESS; }
API cuStreamDestroy_v2(Stream* s) { return drop_stream(s), SUCCESS; }
API cuStreamSynchronize(Stream* s) { return synchronize(s), SUCCESS; }
API cuStreamWaitEvent(Stream* s, Event* e, unsigned) { return wait_for(s, *e), SUCCESS; }
API cuEventCreate(Event** e, unsigned) { return *e = new Event, SUCCESS; }
API cuEventDestroy_v2(Event* e) { return delete e, SUCCESS; }
API cuEventRecord(Event* e, Stream* s) { return record(*e, s), SUCCESS; }
API cuEventQuery(Event* e) { return passed(*e) ? SUCCESS : NOT_READY; }
API cuEventSynchronize(Event* e) { return synchronize(*e), SUCCESS; }
API cuEventElapsedTime(float* ms, Event* start, Event* end) {
  if (!passed(*start) || !passed(*end)) return NOT_READY;
  return *ms = 1e-3f * ((double)end->at - (double)start->at), SUCCESS;
}
// One that sleeps takes its time of the stream and of nobody else.
API cuLaunchHostFunc(Stream* s, void (*function)(void*), void* given) {
  const bool sleeps = (void*)function == (void*)usleep;
  if (!sleeps) function(given);
  return enqueue(s, sleeps ? (Time)given : 0), SUCCESS;
}
API cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, Stream* s) {
  check_host_access(from, bytes, "reads");
  host_wrote(to, bytes);
  std::memmove(to, from, bytes);
  return enqueue(s, 0), SUCCESS;
}
