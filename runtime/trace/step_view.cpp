// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/step_view.h"

#include <algorithm>

#include "runtime/trace/timeline.h"

namespace vitrine {
namespace {

std::vector<SpanRecord> cut(const std::vector<SpanRecord>& spans, const StepTime& step) {
  std::vector<SpanRecord> cut;
  const StreamTimeline timeline(spans);
  for (const NestedSpan& span : timeline.spans) {
    SpanRecord record = span.record;
    record.begin_ns = std::max(record.begin_ns, step.begin_ns);
    record.end_ns = std::min(record.end_ns, step.end_ns);
    if (record.begin_ns < record.end_ns) cut.push_back(record);
  }
  return cut;
}

}  // namespace

std::optional<StepView> view_step(const DeviceSpans& spans, int64_t step) {
  const std::vector<StepTime> steps = find_steps(spans.compute, {step, step});
  if (steps.empty()) return std::nullopt;
  const StepTime& time = steps.front();
  return StepView{
      time.step, time.begin_ns, time.end_ns, cut(spans.compute, time), cut(spans.copy, time), cut(spans.communication, time), cut(spans.host, time)};
}

}  // namespace vitrine
