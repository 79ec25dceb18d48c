// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/phase_table.h"

#include <algorithm>
#include <array>
#include <map>

namespace vitrine {
namespace {

/// What a stream is in from begin_ns to end_ns: its innermost span.
struct Segment {
  int64_t begin_ns;
  int64_t end_ns;
  const SpanInfo* info;
};

/// A span and its position in the nesting of its stream.
struct NestedSpan {
  SpanRecord record;
  const NestedSpan* parent = nullptr;  // null: outermost
};

struct Totals {
  std::array<double, kPhaseCount> exclusive_ns{};
  std::array<double, kPhaseCount> hidden_ns{};
  std::array<int64_t, kPhaseCount> bytes{};
  std::array<int64_t, kPhaseCount> calls{};
  std::map<std::string, double> wait_ns;
};

using Steps = std::vector<std::pair<int64_t, int64_t>>;  // begin and end of each, in order

size_t index_of(Phase phase) { return static_cast<size_t>(phase); }

Steps find_steps(const std::vector<SpanRecord>& compute, StepRange range) {
  std::vector<const SpanRecord*> marks;
  for (const SpanRecord& span : compute) {
    if (span.info.phase == Phase::step) marks.push_back(&span);
  }
  std::stable_sort(marks.begin(), marks.end(), [](const SpanRecord* a, const SpanRecord* b) { return a->begin_ns < b->begin_ns; });
  Steps steps;
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    const int64_t step = marks[i]->info.step;
    if (step >= range.first_step && step <= range.last_step) steps.emplace_back(marks[i]->begin_ns, marks[i + 1]->begin_ns);
  }
  return steps;
}

/// The stream's spans but for step marks, from the outermost in, and what the stream is innermost in at every moment.
struct StreamTimeline {
  std::vector<NestedSpan> spans;
  std::vector<Segment> segments;

  explicit StreamTimeline(const std::vector<SpanRecord>& records) {
    for (const SpanRecord& record : records) {
      if (record.info.phase != Phase::step) spans.push_back({record});
    }
    std::stable_sort(spans.begin(), spans.end(), [](const NestedSpan& a, const NestedSpan& b) {
      if (a.record.begin_ns != b.record.begin_ns) return a.record.begin_ns < b.record.begin_ns;
      return a.record.depth < b.record.depth;
    });
    nest();
  }

 private:
  void nest() {
    std::vector<const NestedSpan*> open;
    int64_t cursor = 0;
    const auto emit_until = [&](int64_t time_ns) {
      if (!open.empty() && time_ns > cursor) segments.push_back({cursor, time_ns, &open.back()->record.info});
      cursor = std::max(cursor, time_ns);
    };
    const auto close_before = [&](const SpanRecord* next) {
      while (!open.empty() && (next == nullptr || open.back()->record.end_ns <= next->begin_ns || open.back()->record.depth >= next->depth)) {
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
};

/// Times at which some host span of Phase::data is open, as disjoint segments.
std::vector<Segment> data_segments(const std::vector<SpanRecord>& host) {
  std::vector<const SpanRecord*> spans;
  for (const SpanRecord& span : host) {
    if (span.info.phase == Phase::data && span.end_ns > span.begin_ns) spans.push_back(&span);
  }
  std::sort(spans.begin(), spans.end(), [](const SpanRecord* a, const SpanRecord* b) { return a->begin_ns < b->begin_ns; });
  std::vector<Segment> segments;
  for (const SpanRecord* span : spans) {
    if (!segments.empty() && span->begin_ns <= segments.back().end_ns) {
      segments.back().end_ns = std::max(segments.back().end_ns, span->end_ns);
    } else {
      segments.push_back({span->begin_ns, span->end_ns, &span->info});
    }
  }
  return segments;
}

/// Walks along segments with rising times.
class Cursor {
 public:
  explicit Cursor(const std::vector<Segment>& segments) : segments_(segments) {}
  /// What is open at `time_ns`, or null; lowers `next_change_ns` to when that changes.
  const SpanInfo* at(int64_t time_ns, int64_t& next_change_ns) {
    while (next_ < segments_.size() && segments_[next_].end_ns <= time_ns) ++next_;
    if (next_ == segments_.size()) return nullptr;
    const Segment& segment = segments_[next_];
    const bool inside = segment.begin_ns <= time_ns;
    next_change_ns = std::min(next_change_ns, inside ? segment.end_ns : segment.begin_ns);
    return inside ? segment.info : nullptr;
  }

 private:
  const std::vector<Segment>& segments_;
  size_t next_ = 0;
};

bool is_work(const SpanInfo* info) { return info != nullptr && info->phase != Phase::wait; }

/// Gives `ns` nanoseconds, in which the streams (compute, communication, copy) and the host were in these spans, to one phase.
void attribute(const std::array<const SpanInfo*, 3>& streams, const SpanInfo* host, double ns, Totals& totals) {
  Phase phase = Phase::wait;
  std::string cause = "host";
  if (const auto working = std::find_if(streams.begin(), streams.end(), is_work); working != streams.end()) {
    phase = (*working)->phase;
  } else if (const auto waiting = std::find_if(streams.begin(), streams.end(), [](const SpanInfo* s) { return s != nullptr; });
             waiting != streams.end()) {
    cause = (*waiting)->cause;
  } else if (host != nullptr) {
    phase = Phase::data;
  }
  totals.exclusive_ns[index_of(phase)] += ns;
  if (phase == Phase::wait) totals.wait_ns[cause] += ns;

  std::array<bool, kPhaseCount> beneath{};
  for (const SpanInfo* stream : streams) {
    if (is_work(stream)) beneath[index_of(stream->phase)] = true;
  }
  if (host != nullptr) beneath[index_of(Phase::data)] = true;
  beneath[index_of(phase)] = false;
  for (size_t p = 0; p < beneath.size(); ++p) {
    if (beneath[p]) totals.hidden_ns[p] += ns;
  }
}

/// A span's bytes include those of the spans in it; what those of another phase moved is theirs.
void count_calls(const StreamTimeline& stream, const Steps& steps, Totals& totals) {
  size_t step = 0;
  for (const NestedSpan& span : stream.spans) {
    while (step < steps.size() && steps[step].second <= span.record.begin_ns) ++step;
    if (step == steps.size()) return;
    if (span.record.begin_ns < steps[step].first) continue;
    const Phase phase = span.record.info.phase;
    if (span.parent != nullptr && span.parent->record.info.phase == phase) continue;
    ++totals.calls[index_of(phase)];
    totals.bytes[index_of(phase)] += span.record.bytes;
    if (span.parent != nullptr && span.parent->record.begin_ns >= steps[step].first) {
      totals.bytes[index_of(span.parent->record.info.phase)] -= span.record.bytes;
    }
  }
}

}  // namespace

PhaseTable make_phase_table(const DeviceSpans& spans, StepRange range) {
  const Steps steps = find_steps(spans.compute, range);
  const StreamTimeline compute(spans.compute), communication(spans.communication), copy(spans.copy), host(spans.host);
  const std::vector<Segment> data = data_segments(spans.host);
  Totals totals;
  for (const StreamTimeline* stream : {&compute, &communication, &copy, &host}) count_calls(*stream, steps, totals);

  PhaseTable table;
  table.ordinal = spans.ordinal;
  table.steps = static_cast<int64_t>(steps.size());
  double wall_ns = 0;
  Cursor at_compute(compute.segments), at_communication(communication.segments), at_copy(copy.segments), at_data(data);
  for (const auto& [begin_ns, end_ns] : steps) {
    wall_ns += static_cast<double>(end_ns - begin_ns);
    for (int64_t now = begin_ns; now < end_ns;) {
      int64_t next = end_ns;
      const std::array<const SpanInfo*, 3> streams = {at_compute.at(now, next), at_communication.at(now, next), at_copy.at(now, next)};
      const SpanInfo* const loading = at_data.at(now, next);
      attribute(streams, loading, static_cast<double>(next - now), totals);
      now = next;
    }
  }

  const auto share = [&](double ns) { return wall_ns > 0 ? ns / wall_ns : 0; };
  table.wall_seconds = wall_ns * 1e-9;
  double named_ns = 0;
  for (size_t p = 0; p < kPhaseCount; ++p) {
    const double ns = totals.exclusive_ns[p];
    named_ns += ns;
    if (ns == 0 && totals.hidden_ns[p] == 0 && totals.calls[p] == 0) continue;
    table.rows.push_back({static_cast<Phase>(p), spans.ordinal, ns * 1e-9, share(ns), totals.bytes[p], totals.calls[p], totals.hidden_ns[p] * 1e-9});
  }
  if (wall_ns > 0) table.named_share = share(named_ns);
  for (const auto& [cause, ns] : totals.wait_ns) table.waits.push_back({cause, ns * 1e-9, share(ns)});
  std::stable_sort(table.waits.begin(), table.waits.end(), [](const WaitRow& a, const WaitRow& b) { return a.seconds > b.seconds; });
  return table;
}

}  // namespace vitrine
