// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/step_view.h"

#include <algorithm>

#include "runtime/trace/timeline.h"

namespace vitrine {
namespace {

/// Copies the strings that a span points to: names of buckets and peers belong to the engine and the communicator.
void own_strings(SpanInfo& info, std::set<std::string>& names) {
  for (const char** string : {&info.layer, &info.operation, &info.cause})
    *string = names.insert(*string).first->c_str();
}

std::vector<SpanRecord> cut(const std::vector<SpanRecord>& spans, const StepTime& step, std::set<std::string>& names) {
  std::vector<SpanRecord> cut;
  const StreamTimeline timeline(spans);
  for (const NestedSpan& span : timeline.spans) {
    SpanRecord record = span.record;
    record.begin_ns = std::max(record.begin_ns, step.begin_ns);
    record.end_ns = std::min(record.end_ns, step.end_ns);
    if (record.begin_ns >= record.end_ns) continue;
    own_strings(record.info, names);
    cut.push_back(record);
  }
  return cut;
}

}  // namespace

std::optional<StepView> view_step(const DeviceSpans& spans, int64_t step) {
  const std::vector<StepTime> steps = find_steps(spans.compute, {step, step});
  if (steps.empty()) return std::nullopt;
  const StepTime& time = steps.front();
  const auto names = std::make_shared<std::set<std::string>>();
  const auto within = [&](const std::vector<SpanRecord>& lane) { return cut(lane, time, *names); };
  return StepView{.step = time.step,
                  .begin_ns = time.begin_ns,
                  .end_ns = time.end_ns,
                  .compute = within(spans.compute),
                  .copy = within(spans.copy),
                  .communication = within(spans.communication),
                  .host = within(spans.host),
                  .names = names};
}

}  // namespace vitrine
