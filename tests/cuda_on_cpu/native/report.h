// What is wrong with a kernel is told once, to whoever started the process, and ends it.
#pragma once

namespace shim {

enum Order { FORWARD, REVERSE, SHUFFLED };

struct Settings {
  int report = 2;  // file descriptor
  Order order = FORWARD;
  unsigned seed = 0;
  int capability = 80;  // of the device that is played: 80 for sm_80
};
extern Settings settings;

// ``kind`` is the name of a Python exception. Where a kernel runs, the message names it, its thread and its block.
[[noreturn]] void fail(const char* kind, const void* code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace shim
