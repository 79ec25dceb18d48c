// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <vitrine/runtime/clock.h>
#include <vitrine/runtime/phase.h>

namespace vitrine {

/// Level of tracing: nothing, the phases of a step, or also every operation.
enum class TraceLevel : uint8_t { off, phase, operation };

/// Description of a span, given when it is opened. Strings are literals or outlive the tracer's user (layer names of a
/// model).
struct SpanInfo {
  Phase phase = Phase::setup;
  const char* layer = "";      // name of the layer, or empty
  const char* operation = "";  // kernel or collective, or empty for a whole phase
  const char* cause = "";      // for Phase::wait: what it waited for; "cpu:2 in all_reduce" for a late peer
  int64_t step = 0;
};

/// Bytes of the work in a span.
struct SpanBytes {
  int64_t moved = 0;    // between devices or host and device
  int64_t buffers = 0;  // of collectives: what is reduced, or sent to all, whatever the number of ranks
};

/// A closed span. Times are nanoseconds on the host's steady clock.
struct SpanRecord {
  SpanInfo info;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;         // moved within the span
  int depth = 0;             // 0: outermost
  int64_t buffer_bytes = 0;  // SpanBytes::buffers
};

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
