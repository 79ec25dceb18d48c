// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/communication_table.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/trace/timeline.h"

namespace vitrine {
namespace {

bool is_collective(Phase phase) { return phase == Phase::reduce || phase == Phase::broadcast; }

bool waits_for_peer(const SpanInfo& info) {
  return info.phase == Phase::wait && std::string_view(info.cause).find(" in ") != std::string_view::npos;
}

/// The share of the buffer that each link carries, as in nccl-tests: a root has as many links as there are others.
double bus_factor(const CommunicationRow& row, const CommunicationGroup& group) {
  if (row.buffer_bytes == 0) return 0;
  const double sent = static_cast<double>(row.moved_bytes) / static_cast<double>(row.buffer_bytes);
  const bool rooted = row.phase == Phase::broadcast || (!group.all_reduce && row.layer != kBatchStatistics);
  return rooted ? std::min(1.0, sent) : sent;
}

/// Returns the row with that name; adds it if there is none.
CommunicationRow& row_of(std::vector<CommunicationRow>& rows, Phase phase, std::string_view layer) {
  const auto found = std::find_if(
      rows.begin(), rows.end(), [&](const CommunicationRow& row) { return row.phase == phase && row.layer == layer; });
  if (found != rows.end()) return *found;
  CommunicationRow row;
  row.phase = phase;
  row.layer = layer;
  return rows.emplace_back(row);
}

void add(CommunicationRow& row, const CommunicationRow& more) {
  if (row.bus_factor == 0) row.bus_factor = more.bus_factor;
  row.calls += more.calls;
  row.moved_bytes += more.moved_bytes;
  row.buffer_bytes += more.buffer_bytes;
  row.hidden_seconds += more.hidden_seconds;
  row.exposed_seconds += more.exposed_seconds;
  row.late_hidden_seconds += more.late_hidden_seconds;
  row.late_exposed_seconds += more.late_exposed_seconds;
}

/// Adds the segment's time to its kind: collective or late peer, hidden or exposed.
void split(const Segment& segment, Cursor& compute, CommunicationRow& row) {
  const bool late = segment.info->phase == Phase::wait;
  for (int64_t now = segment.begin_ns; now < segment.end_ns;) {
    int64_t next = segment.end_ns;
    const SpanInfo* const beside = compute.at(now, next);
    const bool hidden = is_work(beside) && !is_collective(beside->phase);
    double& seconds = late ? (hidden ? row.late_hidden_seconds : row.late_exposed_seconds)
                           : (hidden ? row.hidden_seconds : row.exposed_seconds);
    seconds += static_cast<double>(next - now) * 1e-9;
    now = next;
  }
}

}  // namespace

CommunicationTable make_communication_table(const DeviceSpans& spans, const CommunicationGroup& group,
                                            StepRange range) {
  std::set<int64_t> steps;
  for (const StepTime& step : find_steps(spans.compute, range)) steps.insert(step.step);
  const auto counts = [&](const SpanInfo& info) { return is_collective(info.phase) && steps.contains(info.step); };

  CommunicationTable table;
  table.ordinal = spans.ordinal;
  table.steps = static_cast<int64_t>(steps.size());
  const auto row = [&](const SpanInfo& info) -> CommunicationRow& {
    return row_of(table.rows, info.phase, info.layer);
  };
  const StreamTimeline compute(spans.compute), communication(spans.communication);
  for (const NestedSpan& span : communication.spans) {
    const SpanInfo& info = span.record.info;
    if (span.parent != nullptr || !counts(info)) continue;
    CommunicationRow& r = row(info);
    ++r.calls;
    r.moved_bytes += span.record.bytes;
    r.buffer_bytes += span.record.buffer_bytes;
  }
  for (CommunicationRow& r : table.rows) r.bus_factor = bus_factor(r, group);
  Cursor at_compute(compute.segments);
  for (const Segment& segment : communication.segments) {
    const SpanInfo& info = segment.span->outermost().record.info;
    if (counts(info) && (is_work(segment.info) || waits_for_peer(*segment.info))) split(segment, at_compute, row(info));
  }
  return table;
}

std::string sharded_collective(const std::string& layer) {
  for (const auto& [begin, collective] :
       {std::pair{kShardsOf, "reduce-scatter of "}, {kParametersOf, "all-gather of "}}) {
    if (layer.starts_with(begin)) return collective + layer.substr(std::string_view(begin).size());
  }
  return {};
}

std::string CommunicationRow::name() const {
  if (std::string collective = sharded_collective(layer); !collective.empty()) return collective;
  return layer.empty() ? phase_name(phase) : layer;
}

CommunicationRow CommunicationTable::total() const {
  CommunicationRow sum;
  double carried = 0;
  for (const CommunicationRow& row : rows) {
    add(sum, row);
    carried += static_cast<double>(row.buffer_bytes) * row.bus_factor;
  }
  if (sum.buffer_bytes > 0) sum.bus_factor = carried / static_cast<double>(sum.buffer_bytes);
  return sum;
}

size_t least_late(std::span<const CommunicationTable> tables) {
  const auto later = [](const CommunicationTable& a, const CommunicationTable& b) {
    return a.total().late_seconds() < b.total().late_seconds();
  };
  const auto least = std::min_element(tables.begin(), tables.end(), later);
  return static_cast<size_t>(least - tables.begin());
}

void add_communication_table(CommunicationTable& table, const CommunicationTable& more) {
  table.steps += more.steps;
  for (const CommunicationRow& row : more.rows) add(row_of(table.rows, row.phase, row.layer), row);
}

}  // namespace vitrine
