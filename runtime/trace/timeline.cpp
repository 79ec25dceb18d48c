// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/timeline.h"

#include <algorithm>
#include <set>

namespace vitrine {

StreamTimeline::StreamTimeline(const std::vector<SpanRecord>& records) {
  for (const SpanRecord& record : records) {
    if (record.info.phase != Phase::step) spans.push_back({record});
  }
  std::ranges::stable_sort(spans, [](const NestedSpan& a, const NestedSpan& b) {
    if (a.record.begin_ns != b.record.begin_ns) return a.record.begin_ns < b.record.begin_ns;
    return a.record.depth < b.record.depth;
  });
  nest();
}

void StreamTimeline::nest() {
  std::vector<const NestedSpan*> open;
  int64_t cursor = 0;
  const auto emit_until = [&](int64_t time_ns) {
    if (!open.empty() && time_ns > cursor)
      segments.push_back({cursor, time_ns, &open.back()->record.info, open.back()});
    cursor = std::max(cursor, time_ns);
  };
  const auto close_before = [&](const SpanRecord* next) {
    while (!open.empty() && (next == nullptr || open.back()->record.end_ns <= next->begin_ns ||
                             open.back()->record.depth >= next->depth)) {
      emit_until(open.back()->record.end_ns);
      open.pop_back();
    }
  };
  for (NestedSpan& span : spans) {
    close_before(&span.record);
    emit_until(span.record.begin_ns);
    if (!open.empty()) {
      span.parent = open.back();
      span.record.end_ns = std::min(span.record.end_ns, open.back()->record.end_ns);
    }
    open.push_back(&span);
  }
  close_before(nullptr);
}

std::vector<StepTime> find_steps(const std::vector<SpanRecord>& compute, StepRange range) {
  std::vector<const SpanRecord*> marks;
  for (const SpanRecord& span : compute) {
    if (span.info.phase == Phase::step) marks.push_back(&span);
  }
  std::ranges::stable_sort(marks, [](const SpanRecord* a, const SpanRecord* b) { return a->begin_ns < b->begin_ns; });
  std::vector<StepTime> steps;
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    const int64_t step = marks[i]->info.step;
    if (step >= range.first_step && step <= range.last_step)
      steps.push_back({step, marks[i]->begin_ns, marks[i + 1]->begin_ns});
  }
  return steps;
}

const SpanInfo* Cursor::at(int64_t time_ns, int64_t& next_change_ns) {
  while (next_ < segments_.size() && segments_[next_].end_ns <= time_ns) ++next_;
  if (next_ == segments_.size()) return nullptr;
  const Segment& segment = segments_[next_];
  const bool inside = segment.begin_ns <= time_ns;
  next_change_ns = std::min(next_change_ns, inside ? segment.end_ns : segment.begin_ns);
  return inside ? segment.info : nullptr;
}

bool is_work(const SpanInfo* info) { return info != nullptr && info->phase != Phase::wait; }

}  // namespace vitrine
