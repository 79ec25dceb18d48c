// SPDX-License-Identifier: Apache-2.0
#include "tests/standins/fibers.h"

#include <cstdint>
#include <cstdlib>
#include <new>

#include <pthread.h>
#include <sys/mman.h>

#if defined(VITRINE_STANDINS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
// This file is compiled without the sanitizers' instrumentation; see CMakeLists.txt.

namespace vitrine::standins {

namespace {
#if defined(VITRINE_STANDINS_INSTRUMENTED)
constexpr size_t kStackBytes = size_t{256} << 10;
#else
constexpr size_t kStackBytes = size_t{64} << 10;
#endif
constexpr size_t kGuardBytes = 4096;
}  // namespace

void enter_fiber(Fiber* fiber) {
#if defined(VITRINE_STANDINS_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  fiber->function_(fiber->argument_);
  std::abort();
}

}  // namespace vitrine::standins

#if defined(__x86_64__)

// Pushes the registers that a call must preserve onto the old stack, stores its pointer in *from, and restores the same
// from the new one.
extern "C" void vitrine_standins_switch(void** from, void* to);
// Entry of a new stack: its Fiber is in rbx.
extern "C" void vitrine_standins_begin();
asm(R"(
.text
.p2align 4
.globl vitrine_standins_switch
.type vitrine_standins_switch, @function
vitrine_standins_switch:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size vitrine_standins_switch, . - vitrine_standins_switch
.p2align 4
.globl vitrine_standins_begin
.type vitrine_standins_begin, @function
vitrine_standins_begin:
  movq %rbx, %rdi
  call *%rbp
  ud2
.size vitrine_standins_begin, . - vitrine_standins_begin
)");

namespace {

void* first_frame(std::byte* top, vitrine::standins::Fiber* fiber) {
  // What the switch pops: r15, r14, r13, r12, rbx, rbp, return address. Then the stack is aligned to 16 bytes, as
  // required by a call.
  void** frame = reinterpret_cast<void**>(top) - 9;
  frame[4] = fiber;
  frame[5] = reinterpret_cast<void*>(&vitrine::standins::enter_fiber);
  frame[6] = reinterpret_cast<void*>(&vitrine_standins_begin);
  return frame;
}

void switch_stacks(void** from, void* to) { vitrine_standins_switch(from, to); }

}  // namespace

#else

#include <ucontext.h>

namespace {

// The portable way, with two system calls for each switch: a stack pointer is the address of an ucontext_t, which is at
// the start of the stack or, for a thread's own stack, on it.
void begin(unsigned high, unsigned low) {
  vitrine::standins::enter_fiber(reinterpret_cast<vitrine::standins::Fiber*>((uintptr_t{high} << 32) | low));
}

void* first_frame(std::byte* top, vitrine::standins::Fiber* fiber) {
  auto* const bottom = top - vitrine::standins::kStackBytes;
  auto* const context = new (bottom) ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = bottom + sizeof(ucontext_t);
  context->uc_stack.ss_size = vitrine::standins::kStackBytes - sizeof(ucontext_t);
  context->uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(fiber);
  makecontext(context, reinterpret_cast<void (*)()>(&begin), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
  return context;
}

void switch_stacks(void** from, void* to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

}  // namespace

#endif

namespace vitrine::standins {

Fiber::Fiber() {
#if defined(VITRINE_STANDINS_ASAN)
  pthread_attr_t attributes;
  void* bottom = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &bottom, &bytes_);
  pthread_attr_destroy(&attributes);
  bottom_ = bottom;
#endif
}

Fiber::Fiber(void (*function)(void*), void* argument) : bytes_(kStackBytes), function_(function), argument_(argument) {
  void* const memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  stack_ = static_cast<std::byte*>(memory);
  bottom_ = stack_ + kGuardBytes;
  stack_pointer_ = first_frame(stack_ + kGuardBytes + kStackBytes, this);
}

Fiber::~Fiber() {
  if (stack_ == nullptr) return;
#if defined(VITRINE_STANDINS_ASAN)
  __asan_unpoison_memory_region(stack_, kStackBytes + kGuardBytes);
#endif
  munmap(stack_, kStackBytes + kGuardBytes);
}

void Fiber::switch_to(Fiber& next) {
#if defined(VITRINE_STANDINS_ASAN)
  __sanitizer_start_switch_fiber(&fake_stack_, next.bottom_, next.bytes_);
#endif
  switch_stacks(&stack_pointer_, next.stack_pointer_);
#if defined(VITRINE_STANDINS_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

}  // namespace vitrine::standins
