// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/trace/phase_table.h"

/// Private to runtime/trace: a stream's spans, put in order and nested.
namespace vitrine {

/// A span and its position in the nesting of its stream.
struct NestedSpan {
  SpanRecord record;
  const NestedSpan* parent = nullptr;  // null: outermost

  const NestedSpan& outermost() const { return parent == nullptr ? *this : parent->outermost(); }
};

/// What a stream is in from begin_ns to end_ns: its innermost span.
struct Segment {
  int64_t begin_ns;
  int64_t end_ns;
  const SpanInfo* info;
  const NestedSpan* span;  // null where there is no nesting
};

/// The stream's spans but for step marks, from the outermost in, and what the stream is innermost in at every moment.
struct StreamTimeline {
  std::vector<NestedSpan> spans;
  std::vector<Segment> segments;

  explicit StreamTimeline(const std::vector<SpanRecord>& records);
  StreamTimeline(const StreamTimeline&) = delete;
  StreamTimeline& operator=(const StreamTimeline&) = delete;

 private:
  void nest();
};

/// From a step's mark to the next mark.
struct StepTime {
  int64_t step;
  int64_t begin_ns;
  int64_t end_ns;
};

/// The steps of the range that have an end, in order of time.
std::vector<StepTime> find_steps(const std::vector<SpanRecord>& compute, StepRange range);

/// Walks along segments with rising times.
class Cursor {
 public:
  explicit Cursor(const std::vector<Segment>& segments) : segments_(segments) {}
  /// What is open at `time_ns`, or null; lowers `next_change_ns` to when that changes.
  const SpanInfo* at(int64_t time_ns, int64_t& next_change_ns);

 private:
  const std::vector<Segment>& segments_;
  size_t next_ = 0;
};

/// Something is open, and it is no wait.
bool is_work(const SpanInfo* info);

}  // namespace vitrine
