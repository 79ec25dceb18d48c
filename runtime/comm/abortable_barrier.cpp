// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/abortable_barrier.h"

#include "runtime/clock.h"
#include "runtime/cpu/futex.h"

namespace vitrine {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

bool AbortableBarrier::arrive(uint32_t target) {
  const uint32_t before = add(target);
  if ((before & kAborted) != 0) return false;
  if (reached(before + 1, target)) wake_sleepers();
  return true;
}

void AbortableBarrier::leave(uint32_t target) {
  if (reached(add(target) + 1, target)) wake_sleepers();
}

uint32_t AbortableBarrier::add(uint32_t target) {
  // The counts of one use end at its target, so only then can the count overflow into the top bit.
  const bool may_wrap = (target & ~kAborted) < kMostThreads;
  if (!may_wrap) return value_.fetch_add(1, std::memory_order_seq_cst);
  uint32_t value = value_.load(std::memory_order_relaxed);
  while (!value_.compare_exchange_weak(value, ((value + 1) & ~kAborted) | (value & kAborted), std::memory_order_seq_cst,
                                       std::memory_order_relaxed)) {
  }
  return value;
}

bool AbortableBarrier::wait(uint32_t target, int64_t spin_ns) {
  uint32_t last = 0;
  wait_for(spin_ns, [&](uint32_t value) {
    last = value;
    return (value & kAborted) != 0 || reached(value, target);
  });
  if ((last & kAborted) == 0) return true;
  // Other threads may have counted on since, so the counter's value at the abort decides.
  while ((last = value_at_abort_.load(std::memory_order_acquire)) == kAborted) cpu::relax();
  return reached(last, target);
}

void AbortableBarrier::wait_regardless(uint32_t target, int64_t spin_ns) {
  wait_for(spin_ns, [&](uint32_t value) { return reached(value, target); });
}

void AbortableBarrier::abort() {
  const uint32_t before = value_.fetch_or(kAborted, std::memory_order_seq_cst);
  if ((before & kAborted) != 0) return;
  value_at_abort_.store(before, std::memory_order_release);
  wake_sleepers();
}

template <class Done>
void AbortableBarrier::wait_for(int64_t spin_ns, const Done& done) {
  if (done(value_.load(std::memory_order_acquire))) return;
  if (spin_ns > 0) {
    const int64_t deadline = steady_now_ns() + spin_ns;
    do {
      for (int i = 0; i < 16; ++i) {
        cpu::relax();
        if (done(value_.load(std::memory_order_acquire))) return;
      }
    } while (steady_now_ns() < deadline);
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  uint32_t value = value_.load(std::memory_order_seq_cst);
  while (!done(value)) {
    cpu::futex_wait(value_, value);
    value = value_.load(std::memory_order_seq_cst);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void AbortableBarrier::wake_sleepers() {
  if (sleepers_.load(std::memory_order_seq_cst) != 0) cpu::futex_wake_all(value_);
}

}  // namespace vitrine
