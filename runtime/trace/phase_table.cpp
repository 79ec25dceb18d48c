// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/phase_table.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "runtime/trace/timeline.h"

namespace vitrine {
namespace {

/// Nanoseconds, bytes and calls of each phase over the measured steps.
struct PhaseSums {
  std::array<double, kPhaseCount> exclusive_ns{};
  std::array<double, kPhaseCount> hidden_ns{};
  std::array<int64_t, kPhaseCount> bytes{};
  std::array<int64_t, kPhaseCount> calls{};
  std::map<std::string, double> wait_ns;
};

size_t index_of(Phase phase) { return static_cast<size_t>(phase); }

/// Times at which a host span of Phase::data is open, as disjoint segments.
std::vector<Segment> data_segments(const std::vector<SpanRecord>& host) {
  std::vector<const SpanRecord*> spans;
  for (const SpanRecord& span : host) {
    if (span.info.phase == Phase::data && span.end_ns > span.begin_ns) spans.push_back(&span);
  }
  std::ranges::sort(spans, [](const SpanRecord* a, const SpanRecord* b) { return a->begin_ns < b->begin_ns; });
  std::vector<Segment> segments;
  for (const SpanRecord* span : spans) {
    if (!segments.empty() && span->begin_ns <= segments.back().end_ns) {
      segments.back().end_ns = std::max(segments.back().end_ns, span->end_ns);
    } else {
      segments.push_back({span->begin_ns, span->end_ns, &span->info, nullptr});
    }
  }
  return segments;
}

/// Attributes `ns` nanoseconds, in which the streams (compute, communication, copy) and the host were in these spans,
/// to one phase.
void attribute(const std::array<const SpanInfo*, 3>& streams, const SpanInfo* host, double ns, PhaseSums& sums) {
  Phase phase = Phase::wait;
  std::string cause = "host";
  if (const auto working = std::ranges::find_if(streams, is_work); working != streams.end()) {
    phase = (*working)->phase;
  } else if (const auto waiting = std::ranges::find_if(streams, [](const SpanInfo* s) { return s != nullptr; });
             waiting != streams.end()) {
    cause = (*waiting)->cause;
  } else if (host != nullptr) {
    phase = Phase::data;
  }
  sums.exclusive_ns[index_of(phase)] += ns;
  if (phase == Phase::wait) sums.wait_ns[cause] += ns;

  std::array<bool, kPhaseCount> beneath{};
  for (const SpanInfo* stream : streams) {
    if (is_work(stream)) beneath[index_of(stream->phase)] = true;
  }
  if (host != nullptr) beneath[index_of(Phase::data)] = true;
  beneath[index_of(phase)] = false;
  for (size_t p = 0; p < beneath.size(); ++p) {
    if (beneath[p]) sums.hidden_ns[p] += ns;
  }
}

/// A span's bytes include the bytes of nested spans; if a nested span has another phase, its bytes belong to that
/// phase.
///   counts  whether a span belongs to the steps
template <class Counts>
void count_calls(const StreamTimeline& stream, const Counts& counts, PhaseSums& sums) {
  for (const NestedSpan& span : stream.spans) {
    if (!counts(span.record)) continue;
    const Phase phase = span.record.info.phase;
    if (span.parent != nullptr && span.parent->record.info.phase == phase) continue;
    ++sums.calls[index_of(phase)];
    sums.bytes[index_of(phase)] += span.record.bytes;
    if (span.parent != nullptr && counts(span.parent->record))
      sums.bytes[index_of(span.parent->record.info.phase)] -= span.record.bytes;
  }
}

}  // namespace

PhaseTable make_phase_table(const DeviceSpans& spans, StepRange range) {
  const std::vector<StepTime> steps = find_steps(spans.compute, range);
  const StreamTimeline compute(spans.compute), communication(spans.communication), copy(spans.copy), host(spans.host);
  const std::vector<Segment> data = data_segments(spans.host);
  PhaseSums sums;
  const auto begins_in_a_step = [&](const SpanRecord& span) {
    const auto ends_later =
        std::ranges::upper_bound(steps, span.begin_ns, {}, [](const StepTime& step) { return step.end_ns; });
    return ends_later != steps.end() && ends_later->begin_ns <= span.begin_ns;
  };
  for (const StreamTimeline* stream : {&compute, &copy, &host}) count_calls(*stream, begins_in_a_step, sums);
  // The thread of a CPU device may open a collective while the step before it ends.
  const auto is_of_a_step = [&](const SpanRecord& span) {
    return std::ranges::binary_search(steps, span.info.step, {}, [](const StepTime& step) { return step.step; });
  };
  count_calls(communication, is_of_a_step, sums);
  sums.bytes[index_of(Phase::data)] =
      0;  // the host loads a batch once for all devices; each receives its part in stage

  PhaseTable table;
  table.ordinal = spans.ordinal;
  table.steps = static_cast<int64_t>(steps.size());
  double wall_ns = 0;
  Cursor at_compute(compute.segments), at_communication(communication.segments), at_copy(copy.segments), at_data(data);
  for (const StepTime& step : steps) {
    wall_ns += static_cast<double>(step.end_ns - step.begin_ns);
    for (int64_t now = step.begin_ns; now < step.end_ns;) {
      int64_t next = step.end_ns;
      const std::array<const SpanInfo*, 3> streams = {at_compute.at(now, next), at_communication.at(now, next),
                                                      at_copy.at(now, next)};
      const SpanInfo* const loading = at_data.at(now, next);
      attribute(streams, loading, static_cast<double>(next - now), sums);
      now = next;
    }
  }

  for (const NestedSpan& span : compute.spans) {
    const SpanRecord& record = span.record;
    const auto is_in = [&](const StepTime& step) {
      return step.begin_ns <= record.begin_ns && record.begin_ns < step.end_ns;
    };
    if (std::string_view(record.info.layer) != kLeafSums || std::ranges::none_of(steps, is_in)) continue;
    table.leaf_seconds += static_cast<double>(record.end_ns - record.begin_ns) * 1e-9;
  }

  const auto share = [&](double ns) { return wall_ns > 0 ? ns / wall_ns : 0; };
  table.wall_seconds = wall_ns * 1e-9;
  double named_ns = 0;
  for (size_t p = 0; p < kPhaseCount; ++p) {
    const double ns = sums.exclusive_ns[p];
    named_ns += ns;
    if (ns == 0 && sums.hidden_ns[p] == 0 && sums.calls[p] == 0) continue;
    table.rows.push_back({static_cast<Phase>(p), spans.ordinal, ns * 1e-9, share(ns), sums.bytes[p], sums.calls[p],
                          sums.hidden_ns[p] * 1e-9});
  }
  if (wall_ns > 0) table.named_share = share(named_ns);
  for (const auto& [cause, ns] : sums.wait_ns) table.waits.push_back({cause, ns * 1e-9, share(ns)});
  std::ranges::stable_sort(table.waits, [](const WaitRow& a, const WaitRow& b) { return a.seconds > b.seconds; });
  return table;
}

}  // namespace vitrine
