// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Stacks that a thread of the host runs in turn.
namespace vitrine::standins {

/// A stack and where it stopped. One that was not made with a function stands for the thread's own stack.
class Fiber {
 public:
  Fiber();
  /// At the first switch to it, calls function(argument), which must not return.
  Fiber(void (*function)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Stops here, on this fiber, and goes on where `next` stopped; returns when something switches back.
  void switch_to(Fiber& next);

 private:
  friend void enter_fiber(Fiber* fiber);
  void* stack_pointer_ = nullptr;
  std::byte* stack_ = nullptr;
  const void* bottom_ = nullptr;  // the lowest address, for AddressSanitizer
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void* tsan_ = nullptr;
  void (*function_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace vitrine::standins
