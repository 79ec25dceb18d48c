// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace vitrine {

/// A counter that threads raise and wait for; they spin briefly, then sleep. Counts are modulo 2^31; the top bit marks
/// an abort. If the abort comes before a count is reached, that count is never reached, so all threads that wait for it
/// see the same result.
class AbortableBarrier {
 public:
  static constexpr uint32_t kMostThreads = 1024;  // that use one counter

  /// Adds one and, if that reaches `target`, wakes the threads that wait for it. Returns false after abort(), which
  /// makes the count void.
  bool arrive(uint32_t target);
  /// Adds one, aborted or not.
  void leave(uint32_t target);
  /// Returns true once `target` is reached, false if the counter was aborted before.
  bool wait(uint32_t target, int64_t spin_ns);
  /// Returns once `target` is reached, aborted or not. requires that the target is certain to be reached
  void wait_regardless(uint32_t target, int64_t spin_ns);
  /// Aborts pending and later waits whose target has not been reached.
  void abort();

 private:
  static constexpr uint32_t kAborted = uint32_t{1} << 31;
  static bool reached(uint32_t value, uint32_t target) { return static_cast<int32_t>((value - target) << 1) >= 0; }
  uint32_t add(uint32_t target);
  template <class Done>
  void wait_for(int64_t spin_ns, const Done& done);
  void wake_sleepers();

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> value_at_abort_{kAborted};  // kAborted: not aborted
};

}  // namespace vitrine
