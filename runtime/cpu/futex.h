// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/// Sleeping and waking without a mutex. std::atomic::wait would also work, but its waiter counts order the waker after
/// the waiter, which hides missing events from ThreadSanitizer. Here only the caller's own loads and stores order
/// anything.
namespace vitrine::cpu {

/// Sleeps while `word` holds `expected`; may return early.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

/// The same between processes, on a word in memory that they share; sleeps for at most so long.
inline void futex_wait_between_processes(const std::atomic<uint32_t>& word, uint32_t expected,
                                         int64_t most_ns) noexcept {
  const timespec most{.tv_sec = static_cast<time_t>(most_ns / 1'000'000'000),
                      .tv_nsec = static_cast<long>(most_ns % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT, expected, &most, nullptr, 0);
}

inline void futex_wake_all_between_processes(const std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

/// Keeps a read-modify-write before it and a load after it in this order. On x86-64 they are always in order (and
/// ThreadSanitizer, which runs there, does not understand fences).
inline void full_fence() noexcept {
#if defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Rounds of relax() that pay off before sleeping: about 10 us.
inline constexpr int kSpinRounds = 400;

}  // namespace vitrine::cpu
