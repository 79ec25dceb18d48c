// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/trace/phase_table.h"

/// Private to runtime/trace: the spans of a stream, sorted and nested.
namespace vitrine {

/// A span and its position in the nesting of its stream.
struct NestedSpan {
  SpanRecord record;
  const NestedSpan* parent = nullptr;  // null: outermost

  const NestedSpan& outermost() const { return parent == nullptr ? *this : parent->outermost(); }
};

/// Period in which a span is the innermost one of a stream.
struct Segment {
  int64_t begin_ns;
  int64_t end_ns;
  const SpanInfo* info;
  const NestedSpan* span;  // null for spans that are not nested
};

/// The stream's spans without step marks, outermost first, and the innermost span at every moment.
struct StreamTimeline {
  std::vector<NestedSpan> spans;
  std::vector<Segment> segments;

  explicit StreamTimeline(const std::vector<SpanRecord>& records);
  StreamTimeline(const StreamTimeline&) = delete;
  StreamTimeline& operator=(const StreamTimeline&) = delete;

 private:
  void nest();
};

/// Period from a step's mark to the next mark.
struct StepTime {
  int64_t step;
  int64_t begin_ns;
  int64_t end_ns;
};

/// The complete steps of the range, by time.
std::vector<StepTime> find_steps(const std::vector<SpanRecord>& compute, StepRange range);

/// Walks along segments at increasing times.
class Cursor {
 public:
  explicit Cursor(const std::vector<Segment>& segments) : segments_(segments) {}
  /// Returns the span that is open at `time_ns`, or null; lowers `next_change_ns` to the time of the next change.
  const SpanInfo* at(int64_t time_ns, int64_t& next_change_ns);

 private:
  const std::vector<Segment>& segments_;
  size_t next_ = 0;
};

/// A span is open, and it is not a wait.
bool is_work(const SpanInfo* info);

}  // namespace vitrine
