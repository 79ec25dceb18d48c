// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/step_recorder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "runtime/trace/timeline.h"

namespace vitrine {
namespace {

// When a step begins, all work of the fourth step before it has ended on all streams: the host issues at most three
// steps ahead, and a step's computation waits for its copies and for the collectives of the step before. Before a
// step's spans are dropped, the next two steps are processed too, because a collective may open its span that
// early.
constexpr size_t kStepsInFlight = 4, kStepsOfOverlap = 2;

using StreamSpans = std::vector<SpanRecord> DeviceSpans::*;
constexpr std::array<StreamSpans, 4> kStreams = {&DeviceSpans::compute, &DeviceSpans::copy, &DeviceSpans::communication,
                                                 &DeviceSpans::host};

}  // namespace

StepRecorder::StepRecorder(int ordinal, CommunicationGroup group, std::optional<StepRange> keep)
    : group_(group), keep_(keep), booked_(std::numeric_limits<int64_t>::min()) {
  phases_.ordinal = communication_.ordinal = pending_.ordinal = kept_.ordinal = ordinal;
}

void StepRecorder::add(DeviceSpans spans, int64_t first_step) {
  for (const StreamSpans stream : kStreams) {
    std::vector<SpanRecord>& more = spans.*stream;
    if (keep_) {
      std::ranges::copy_if(more, std::back_inserter(kept_.*stream), [&](const SpanRecord& span) {
        return span.info.step >= keep_->first_step && span.info.step <= keep_->last_step;
      });
    }
    std::vector<SpanRecord>& pending = pending_.*stream;
    pending.insert(pending.end(), more.begin(), more.end());
  }
  const std::vector<StepTime> steps = find_steps(pending_.compute, {});
  if (steps.size() <= kStepsInFlight) return;
  const StepTime& last = steps[steps.size() - 1 - kStepsInFlight];
  if (last.step <= booked_) return;
  book({first_step, last.step});
  const auto kept_from = static_cast<size_t>(&last - steps.data());
  if (kept_from >= kStepsOfOverlap) forget_before(steps[kept_from - kStepsOfOverlap + 1].begin_ns, last.step);
}

void StepRecorder::finish(int64_t first_step) {
  book({first_step, std::numeric_limits<int64_t>::max()});
  discard();
}

void StepRecorder::discard() {
  for (const StreamSpans stream : kStreams) (pending_.*stream).clear();
}

void StepRecorder::book(StepRange range) {
  if (booked_ != std::numeric_limits<int64_t>::min()) range.first_step = std::max(range.first_step, booked_ + 1);
  const std::vector<StepTime> steps = find_steps(pending_.compute, range);
  if (steps.empty()) return;
  add_phase_table(phases_, make_phase_table(pending_, range));
  add_communication_table(communication_, make_communication_table(pending_, group_, range));
  booked_ = steps.back().step;
}

void StepRecorder::forget_before(int64_t time_ns, int64_t step) {
  for (const StreamSpans stream : kStreams) {
    std::erase_if(pending_.*stream,
                  [&](const SpanRecord& span) { return span.end_ns < time_ns && span.info.step <= step; });
  }
}

size_t StepRecorder::pending_spans() const {
  size_t count = 0;
  for (const StreamSpans stream : kStreams) count += (pending_.*stream).size();
  return count;
}

void add_phase_table(PhaseTable& table, const PhaseTable& more) {
  table.steps += more.steps;
  table.wall_seconds += more.wall_seconds;
  table.leaf_seconds += more.leaf_seconds;
  for (const PhaseRow& row : more.rows) {
    const auto place = std::lower_bound(table.rows.begin(), table.rows.end(), row,
                                        [](const PhaseRow& a, const PhaseRow& b) { return a.phase < b.phase; });
    if (place == table.rows.end() || place->phase != row.phase) {
      table.rows.insert(place, row);
      continue;
    }
    place->seconds += row.seconds;
    place->hidden_seconds += row.hidden_seconds;
    place->bytes += row.bytes;
    place->calls += row.calls;
  }
  for (const WaitRow& row : more.waits) {
    const auto place =
        std::ranges::find_if(table.waits, [&](const WaitRow& known) { return known.cause == row.cause; });
    if (place == table.waits.end()) {
      table.waits.push_back(row);
    } else {
      place->seconds += row.seconds;
    }
  }
  if (table.wall_seconds <= 0.0) return;
  table.named_share = 0.0;
  for (PhaseRow& row : table.rows) table.named_share += row.share = row.seconds / table.wall_seconds;
  for (WaitRow& row : table.waits) row.share = row.seconds / table.wall_seconds;
  std::ranges::stable_sort(table.waits, [](const WaitRow& a, const WaitRow& b) { return a.seconds > b.seconds; });
}

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
