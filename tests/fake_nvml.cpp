// The functions of libnvidia-ml that xframe/nvml.py calls, for two made-up GPUs. Compiled against nvml.h where that is
// there, so that each prototype is the real one.

#include <cstdio>
#include <cstring>

#if __has_include(<nvml.h>)
#include <nvml.h>
#else
typedef int nvmlReturn_t;
typedef void* nvmlDevice_t;
typedef int nvmlClockType_t, nvmlTemperatureSensors_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
enum { NVML_SUCCESS, NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 6,
       NVML_ERROR_DRIVER_NOT_LOADED = 9 };
enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM };
enum { NVML_TEMPERATURE_GPU };
#endif

static int opened;
static unsigned long long reasons = 1;
static int broken;  // 1: the driver is not loaded; 2: nothing but names is told
static char first, second;

static int number(nvmlDevice_t gpu) { return (char*)gpu == &first ? 0 : (char*)gpu == &second ? 1 : -1; }
#define CHECK(gpu) \
  if (!opened) return NVML_ERROR_UNINITIALIZED; \
  if (number(gpu) < 0) return NVML_ERROR_INVALID_ARGUMENT; \
  if (broken == 2) return NVML_ERROR_NOT_SUPPORTED

extern "C" {
void fake_reasons(unsigned long long bits) { reasons = bits; }
void fake_broken(int how) { broken = how; }
int fake_opened() { return opened; }

nvmlReturn_t nvmlInit_v2(void) { if (broken == 1) return NVML_ERROR_DRIVER_NOT_LOADED; ++opened; return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { --opened; return NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t status) { return status == NVML_ERROR_DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Error"; }
nvmlReturn_t nvmlSystemGetDriverVersion(char* out, unsigned int size) { std::snprintf(out, size, "580.12"); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) { *count = 2; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* out) {
  if (index > 1) return NVML_ERROR_INVALID_ARGUMENT;
  *out = (nvmlDevice_t)(index ? &second : &first);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* out) {
  if (std::strcmp(uuid, "GPU-2")) return NVML_ERROR_NOT_FOUND;
  *out = (nvmlDevice_t)&second;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t gpu, char* out, unsigned int size) {
  std::snprintf(out, size, "NVIDIA H%d00", number(gpu) + 1);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t gpu, char* out, unsigned int size) { std::snprintf(out, size, "GPU-%d", number(gpu) + 1); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t gpu, int* major, int* minor) { CHECK(gpu); *major = 9; *minor = 0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t gpu, unsigned int* out) { CHECK(gpu); *out = 16896; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, nvmlMemory_t* out) { CHECK(gpu); out->total = 80ull << 30; out->free = out->used = 40ull << 30; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t gpu, unsigned int* out) { CHECK(gpu); *out = 700000; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t gpu, unsigned int* out) { CHECK(gpu); *out = 123400; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t gpu, nvmlTemperatureSensors_t sensor, unsigned int* out) {
  CHECK(gpu);
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  *out = 41;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t gpu, nvmlClockType_t type, unsigned int* out) {
  CHECK(gpu);
  if (type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM) return NVML_ERROR_INVALID_ARGUMENT;
  *out = type == NVML_CLOCK_SM ? 1980 : 2619;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t gpu, nvmlClockType_t type, unsigned int* out) {
  unsigned int now = 0;
  nvmlReturn_t status = nvmlDeviceGetClockInfo(gpu, type, &now);
  *out = now + 5;
  return status;
}
// An older driver: the newer name is not there.
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t gpu, unsigned long long* out) { CHECK(gpu); *out = reasons; return NVML_SUCCESS; }
}
