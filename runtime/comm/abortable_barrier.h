// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace vitrine {

/// A counter that threads raise and wait for: they spin a little, then sleep. Counts are modulo 2^31; the top bit says that it was aborted. An
/// abort that comes before a count is reached keeps it from ever being reached, so that all who wait for it see the same outcome.
class AbortableBarrier {
 public:
  static constexpr uint32_t kMostThreads = 1024;  // that use one counter

  /// Adds one; wakes those who wait for `target` when that is reached. Returns false after abort(); it then counts for nobody.
  bool arrive(uint32_t target);
  /// Adds one, aborted or not.
  void leave(uint32_t target);
  /// Returns true once `target` is reached; false when the counter was aborted before.
  bool wait(uint32_t target, int64_t spin_ns);
  /// Returns once `target` is reached, aborted or not: for waits that surely end.
  void wait_regardless(uint32_t target, int64_t spin_ns);
  /// Ends the waits of now and later whose target was not reached.
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
