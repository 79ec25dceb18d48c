// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/rendezvous.h"

#include "runtime/cpu/futex.h"
#include "runtime/trace/span.h"

namespace vitrine {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

bool RendezvousCounter::arrive(uint32_t target) {
  uint32_t value = value_.load(std::memory_order_relaxed);
  uint32_t next = 0;
  do {
    if ((value & kAborted) != 0) return false;
    next = (value + 1) & ~kAborted;
  } while (!value_.compare_exchange_weak(value, next, std::memory_order_seq_cst, std::memory_order_relaxed));
  if (reached(next, target)) wake_sleepers();
  return true;
}

void RendezvousCounter::leave(uint32_t target) {
  uint32_t value = value_.load(std::memory_order_relaxed);
  uint32_t next = 0;
  do {
    next = ((value + 1) & ~kAborted) | (value & kAborted);
  } while (!value_.compare_exchange_weak(value, next, std::memory_order_seq_cst, std::memory_order_relaxed));
  if (reached(next, target)) wake_sleepers();
}

bool RendezvousCounter::wait(uint32_t target, int64_t spin_ns) {
  bool in_time = false;
  wait_for(spin_ns, [&](uint32_t value) {
    in_time = reached(value, target);
    return in_time || (value & kAborted) != 0;
  });
  return in_time;
}

void RendezvousCounter::wait_regardless(uint32_t target, int64_t spin_ns) {
  wait_for(spin_ns, [&](uint32_t value) { return reached(value, target); });
}

void RendezvousCounter::abort() {
  value_.fetch_or(kAborted, std::memory_order_seq_cst);
  wake_sleepers();
}

template <class Done>
void RendezvousCounter::wait_for(int64_t spin_ns, const Done& done) {
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

void RendezvousCounter::wake_sleepers() {
  if (sleepers_.load(std::memory_order_seq_cst) != 0) cpu::futex_wake_all(value_);
}

}  // namespace vitrine
