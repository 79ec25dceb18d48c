// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Stacks that a host thread runs in turn.
namespace vitrine::standins {

/// To ThreadSanitizer the fibers of a host thread are one thread: tests/ptx looks for races between threads of a block.
/// A stack and the point where it stopped. A fiber created without a function represents the thread's own stack.
class Fiber {
 public:
  Fiber();
  /// The first switch to it calls function(argument), which must not return.
  Fiber(void (*function)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Stops this fiber and continues `next` where it stopped; returns when another fiber switches back.
  void switch_to(Fiber& next);

 private:
  friend void enter_fiber(Fiber* fiber);
  void* stack_pointer_ = nullptr;
  std::byte* stack_ = nullptr;
  const void* bottom_ = nullptr;  // the lowest address, for AddressSanitizer
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void (*function_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace vitrine::standins
