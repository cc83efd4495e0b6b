#include "block.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "memory.h"
#include "report.h"
#include "trace.h"

#ifndef __x86_64__
#error "the fibers are written for x86-64 alone"
#endif

extern "C" {
// Keeps the registers that a function must keep on the stack, and goes on where another stack was left.
void shim_switch(void** left, void* to);
asm(".text\n.globl shim_switch\n.hidden shim_switch\n.type shim_switch,@function\nshim_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nretq\n");
}

namespace shim {

const Kernel* launched = nullptr;
void** arguments = nullptr;
Thread* current = nullptr;

namespace {

constexpr size_t STACK = 256 << 10, GUARD = 1 << 20;
constexpr int WARP = 32;
enum State { RUNS, AT_BARRIER, AT_WARP, FINISHED };

struct Copy {
  void* target;
  char value[16];
  int bytes, group;
};

struct Fiber {
  Thread thread;  // first: ``current`` points here
  State state;
  void* sp;
  char* stack;
  int line;       // of the text, where it waits
  unsigned mask;  // lanes that it waits for
  bool orders_memory;
  unsigned long long slot[2];  // what it shows to its warp; two, as a fast lane may already show the next
  unsigned parity, active;     // lanes that took part
  std::vector<Copy> copies;
  int group;
};

std::vector<Fiber*> fibers;
size_t block_threads = 0;
void* scheduler;
uint32_t epoch = 0;
uint32_t warp_epochs[1024 / WARP];

Fiber& running() { return *reinterpret_cast<Fiber*>(current); }

void wait(State why, int line) {
  settle();
  Fiber& f = running();
  f.state = why, f.line = line;
  shim_switch(&f.sp, scheduler);
}

void flush_copies(Fiber& f, int newest) {
  auto done = [&](const Copy& c) { return c.group < f.group - newest; };
  for (Copy& c : f.copies)
    if (done(c)) std::memcpy(c.target, c.value, c.bytes), arrive(c.target, c.bytes);
  f.copies.erase(std::remove_if(f.copies.begin(), f.copies.end(), done), f.copies.end());
}

void entry() {
  launched->call(arguments);
  ++running().group;
  flush_copies(running(), 0);
  wait(FINISHED, 0);
  abort();  // nobody goes on with a finished thread
}

void start(Fiber& f) {
  f.state = RUNS, f.parity = 0, f.group = 0;
  f.copies.clear();
  void** top = (void**)(f.stack + STACK - 64);
  *--top = nullptr;  // where entry would return to; it also aligns the stack as after a call
  *--top = (void*)entry;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.sp = top;
}

void resume(Fiber& f) {
  current = &f.thread;
  now.thread = f.thread.index, now.warp_epoch = warp_epochs[f.thread.index / WARP] & 0xfff;
  shim_switch(&scheduler, f.sp);
  current = nullptr;
}

// Lets the lanes of a warp go on that wait for each other. Nobody of the block is running.
bool release_warp(size_t first) {
  const size_t last = std::min(first + WARP, block_threads);
  unsigned here = 0, all = 0;
  for (size_t i = first; i < last; ++i) {
    all |= 1u << (i - first);
    if (fibers[i]->state == AT_WARP) here |= 1u << (i - first);
  }
  if (!here) return false;
  Fiber& leader = *fibers[first + __builtin_ctz(here)];
  for (size_t i = first; i < last; ++i) {
    Fiber& f = *fibers[i];
    if (f.state != AT_WARP) continue;
    current = &f.thread;  // for the message
    if (f.line != leader.line)
      fail("Divergence", nullptr, "waits for its warp at line %d, where lane %d waits at line %d", f.line,
           (int)(leader.thread.index - first), leader.line);
    if (const unsigned missing = f.mask & all & ~here)
      fail("Divergence", nullptr, "waits at line %d for lane %d of its warp, which does not come there", f.line,
           __builtin_ctz(missing));
  }
  current = nullptr;
  if (leader.orders_memory) ++warp_epochs[first / WARP];
  for (size_t i = first; i < last; ++i)
    if (fibers[i]->state == AT_WARP) fibers[i]->state = RUNS, fibers[i]->active = here;
  return true;
}

// Lets all threads go on that wait at a barrier, which must be all there are.
void release_barrier() {
  Fiber* waits = nullptr;
  for (size_t i = 0; i < block_threads && !waits; ++i)
    if (fibers[i]->state == AT_BARRIER) waits = fibers[i];
  current = &waits->thread;
  for (size_t i = 0; i < block_threads; ++i) {
    const Fiber& f = *fibers[i];
    const Dim3& t = f.thread.thread;
    if (f.state == FINISHED)
      fail("Divergence", nullptr, "waits at the __syncthreads of line %d, where thread (%u, %u, %u) has returned",
           waits->line, t.x, t.y, t.z);
    if (f.line != waits->line)
      fail("Divergence", nullptr, "waits at the __syncthreads of line %d, thread (%u, %u, %u) at that of line %d",
           waits->line, t.x, t.y, t.z, f.line);
  }
  const Dim3 &b = current->block, &g = current->grid_dim;
  if (tracing) trace_barrier(b.x + g.x * (b.y + g.y * b.z), waits->line);
  current = nullptr;
  now.epoch = ++epoch;
  for (size_t i = 0; i < block_threads; ++i) fibers[i]->state = RUNS;
}

void run_block(const std::vector<size_t>& order, size_t dynamic_shared) {
  begin_block(dynamic_shared);
  now.block_start = now.epoch = ++epoch;
  for (size_t i = 0; i < block_threads; ++i) start(*fibers[i]);
  std::fill(std::begin(warp_epochs), std::end(warp_epochs), 0);
  for (;;) {
    for (size_t i : order)
      if (fibers[i]->state == RUNS) resume(*fibers[i]);
    bool met = false;
    for (size_t first = 0; first < block_threads; first += WARP) met |= release_warp(first);
    if (met) continue;
    const auto finished = [](const Fiber* f) { return f->state == FINISHED; };
    if (std::all_of(fibers.begin(), fibers.begin() + block_threads, finished)) return;
    release_barrier();
  }
}

template <class T>
void arrange(std::vector<T>& items, std::mt19937& random) {
  if (settings.order == REVERSE) std::reverse(items.begin(), items.end());
  if (settings.order == SHUFFLED) std::shuffle(items.begin(), items.end(), random);
}

void on_fault(int, siginfo_t* info, void* context) {
  const char* p = (const char*)info->si_addr;
  const auto* machine = (ucontext_t*)context;
  const void* code = (char*)machine->uc_mcontext.gregs[REG_RIP] + 1;
  if (!current) {  // not a kernel's: let it end as it would have
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  bad_address(p, 1, machine->uc_mcontext.gregs[REG_ERR] & 2, code);
}

// On a stack of its own, as the fault may be that a fiber has used up its own.
void catch_faults() {
  static char stack[64 << 10];
  stack_t alternate{};
  alternate.ss_sp = stack, alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

Fiber* make_fiber() {
  char* p = (char*)mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
  if (p == MAP_FAILED) fail("BadLaunch", nullptr, "no memory for the stacks of its threads");
  mprotect(p, GUARD, PROT_NONE);
  Fiber* f = new Fiber{};
  f->stack = p + GUARD;
  return f;
}

}  // namespace

bool on_stack(const void* address) {
  if (!current) return true;
  const char* p = (const char*)address;
  return p >= running().stack && p < running().stack + STACK;
}

bool beyond_stack(const void* address) {
  const char* p = (const char*)address;
  return current && p >= running().stack - GUARD && p < running().stack;
}

void launch(const Kernel& kernel, const Dim3& grid, const Dim3& block, size_t dynamic_shared, void** given) {
  launched = &kernel, arguments = given;
  block_threads = (size_t)block.x * block.y * block.z;
  if (!block_threads || block_threads > kernel.max_threads || block_threads > 1024 || block.z > 64)
    fail("BadLaunch", nullptr, "wants blocks of %u x %u x %u threads; its bound is %u", block.x, block.y, block.z,
         std::min(kernel.max_threads, 1024u));
  const size_t blocks = (size_t)grid.x * grid.y * grid.z;
  if (!blocks || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    fail("BadLaunch", nullptr, "wants a grid of %u x %u x %u blocks; 2^31 - 1 x 65535 x 65535 are possible", grid.x,
         grid.y, grid.z);
  if (dynamic_shared > shared_limit())
    fail("BadLaunch", nullptr, "wants %zu bytes of shared memory; sm_%d has %zu", dynamic_shared, settings.capability,
         shared_limit());
  while (fibers.size() < block_threads) fibers.push_back(make_fiber());
  catch_faults();
  std::mt19937 random(settings.seed);
  std::vector<size_t> order(block_threads), places(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::iota(places.begin(), places.end(), 0);
  arrange(order, random);
  arrange(places, random);
  now.launch_start = epoch + 1;
  for (size_t place : places) {
    const Dim3 b = {(unsigned)(place % grid.x), (unsigned)(place / grid.x % grid.y),
                    (unsigned)(place / grid.x / grid.y)};
    for (unsigned i = 0; i < block_threads; ++i)
      fibers[i]->thread = {{i % block.x, i / block.x % block.y, i / block.x / block.y}, b, block, grid, i};
    run_block(order, dynamic_shared);
  }
  launched = nullptr, arguments = nullptr;
}

}  // namespace shim

using namespace shim;

extern "C" {

Thread shim_thread() { return *current; }

unsigned shim_index() { return current->index; }

void shim_barrier(int line) { wait(AT_BARRIER, line); }

void shim_warp(unsigned mask, int line, bool orders_memory) {
  Fiber& f = running();
  f.mask = mask, f.orders_memory = orders_memory;
  wait(AT_WARP, line);
}

unsigned shim_active_lanes() {
  const size_t first = running().thread.index / WARP * WARP;
  unsigned lanes = 0;
  for (size_t i = first; i < std::min(first + WARP, block_threads); ++i)
    if (fibers[i]->state != FINISHED) lanes |= 1u << (i - first);
  return lanes;
}

unsigned long long shim_shuffle(unsigned mask, unsigned long long value, int source, int line) {
  Fiber& f = running();
  const unsigned mine = f.parity ^= 1;
  f.slot[mine] = value;
  shim_warp(mask, line, false);
  if (source < 0 || source >= WARP || !(f.active >> source & 1)) return ~0ull;
  return fibers[f.thread.index / WARP * WARP + source]->slot[mine];
}

void shim_show(const void* mine, const void** all, int line) {
  const unsigned parity = running().parity ^ 1;
  shim_shuffle(~0u, (unsigned long long)mine, 0, line);
  const size_t first = running().thread.index / WARP * WARP;
  if (first + WARP > block_threads)
    fail("Divergence", nullptr, "multiplies matrices at line %d in a warp of less than 32 threads", line);
  for (int i = 0; i < WARP; ++i) all[i] = (const void*)fibers[first + i]->slot[parity];
}

void shim_multiple(size_t value, size_t alignment, int line) {
  if (value % alignment)
    fail("Misaligned", nullptr, "takes a matrix at line %d whose address or stride is no multiple of %zu bytes", line,
         alignment);
}

void shim_copy_async(void* target, const void* source, int bytes) {
  const void* code = __builtin_return_address(0);
  Fiber& f = running();
  Copy c{target, {}, bytes, f.group};
  if (source) check(source, bytes, false, code), std::memcpy(c.value, source, bytes);
  check(target, bytes, true, code);
  depart(target, bytes);
  f.copies.push_back(c);
}

void shim_commit_copies() { ++running().group; }

void shim_wait_copies(int groups) { flush_copies(running(), groups); }

}  // extern "C"
