#include "report.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <string>

#include "block.h"

namespace shim {

Settings settings;

void fail(const char* kind, const void* code, const char* format, ...) {
  char text[1024];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  std::string where = launched ? std::string("kernel ") + launched->name : "";
  if (current) {
    char place[160];
    const Dim3 &t = current->thread, &b = current->block;
    snprintf(place, sizeof place, ", thread (%u, %u, %u) of block (%u, %u, %u)", t.x, t.y, t.z, b.x, b.y, b.z);
    where += place;
  }
  // The line of the kernel's text is looked up by the reader, from the place in the object file.
  Dl_info object{};
  char offset[32] = "";
  if (code && dladdr(code, &object) && object.dli_fbase)
    snprintf(offset, sizeof offset, "0x%zx", (size_t)((const char*)code - (const char*)object.dli_fbase) - 1);
  dprintf(settings.report, "%s\n%s\n%s\n%s\n%s\n", kind, where.c_str(), text, offset[0] ? object.dli_fname : "",
          offset);
  _exit(86);
}

}  // namespace shim

extern "C" void shim_configure(int report, int order, unsigned seed, int capability) {
  shim::settings = {report, (shim::Order)order, seed, capability};
}
