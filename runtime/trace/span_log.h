// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/trace/span.h"

namespace vitrine {

/// Closed spans of a stream until they are taken. Keeps the latest ones, so that a program that never takes them holds
/// a bounded number. Thread-safe.
class SpanLog {
 public:
  static constexpr size_t kMostSpans = size_t{1} << 14;

  void add(const SpanRecord& span) {
    const std::lock_guard lock(mutex_);
    if (spans_.size() == kMostSpans) spans_.erase(spans_.begin(), spans_.begin() + kMostSpans / 2);
    spans_.push_back(span);
  }
  std::vector<SpanRecord> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<SpanRecord> spans_;
};

}  // namespace vitrine
