// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/memory_snapshot.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace vitrine {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// An entry of a trace; a segment has no holder.
struct TraceEntry {
  const char* action;
  int64_t offset;
  int64_t bytes;
  int64_t time_ns;
  const MemoryEvent* holder = nullptr;   // allocation of the block
  const MemoryEvent* release = nullptr;  // its release
};

/// A range of a segment, in use or free.
struct Range {
  int64_t offset;
  int64_t bytes;
  const MemoryEvent* holder = nullptr;
};

struct DeviceTrace {
  std::vector<TraceEntry> entries;
  std::vector<Range> ranges;  // final state; they fill the segment
};

DeviceTrace follow(const SnapshotDevice& device) {
  const MemoryHistory& history = device.history;
  DeviceTrace trace;
  std::map<int64_t, const MemoryEvent*> held;
  const auto take = [&](const MemoryEvent& event) {
    trace.entries.push_back({"alloc", event.offset, event.bytes, event.time_ns, &event});
    held[event.offset] = &event;
  };
  const MemoryEvent* first = !history.at_start.empty() ? history.at_start.data() : history.changes.data();
  if (!history.at_start.empty() || !history.changes.empty())
    trace.entries.push_back({"segment_alloc", 0, device.reserved_bytes, first->time_ns});
  for (const MemoryEvent& block : history.at_start) take(block);
  for (const MemoryEvent& change : history.changes) {
    if (change.bytes > 0) {
      take(change);
      continue;
    }
    const MemoryEvent* holder = held.at(change.offset);
    for (const char* action : {"free_requested", "free_completed"}) {
      trace.entries.push_back({action, change.offset, -change.bytes, change.time_ns, holder, &change});
    }
    held.erase(change.offset);
  }
  int64_t end = 0;
  for (const auto& [offset, holder] : held) {
    if (offset > end) trace.ranges.push_back({end, offset - end});
    trace.ranges.push_back({offset, holder->bytes, holder});
    end = offset + holder->bytes;
  }
  if (end < device.reserved_bytes) trace.ranges.push_back({end, device.reserved_bytes - end});
  return trace;
}

int64_t address(size_t device, int64_t offset) { return (static_cast<int64_t>(device + 1) << 40) + offset; }

OrderedJson frames(const MemoryEvent* holder, const MemoryEvent* release) {
  OrderedJson lines = OrderedJson::array();
  const auto add = [&](const char* file, const std::string& name) {
    lines.push_back({{"name", name}, {"filename", file}, {"line", 0}});
  };
  if (holder != nullptr) {
    add("tensor", holder->tensor);
    add("category", category_name(holder->category));
    add("layer", holder->layer.empty() ? "none" : holder->layer);
    add("phase", phase_name(holder->phase));
  }
  if (release != nullptr) add("freed in phase", phase_name(release->phase));
  return lines;
}

OrderedJson entry(size_t device, const TraceEntry& e) {
  return {{"action", e.action}, {"addr", address(device, e.offset)}, {"size", e.bytes},
          {"stream", 0},        {"time_us", e.time_ns / 1000},       {"frames", frames(e.holder, e.release)}};
}

OrderedJson block(size_t device, const Range& range) {
  OrderedJson json = {{"address", address(device, range.offset)},
                      {"size", range.bytes},
                      {"requested_size", range.bytes},
                      {"state", range.holder != nullptr ? "active_allocated" : "inactive"},
                      {"frames", frames(range.holder, nullptr)}};
  // Older readers look for the frames here.
  if (range.holder != nullptr) {
    json["history"] = OrderedJson::array({{{"addr", address(device, range.offset)},
                                           {"real_size", range.bytes},
                                           {"frames", frames(range.holder, nullptr)}}});
  }
  return json;
}

OrderedJson segment(size_t device, int64_t reserved_bytes, const std::vector<Range>& ranges) {
  int64_t held = 0;
  OrderedJson blocks = OrderedJson::array();
  for (const Range& range : ranges) {
    held += range.holder != nullptr ? range.bytes : 0;
    blocks.push_back(block(device, range));
  }
  return {{"device", device},
          {"address", address(device, 0)},
          {"total_size", reserved_bytes},
          {"allocated_size", held},
          {"active_size", held},
          {"requested_size", held},
          {"stream", 0},
          {"segment_type", "large"},
          {"segment_pool_id", {0, 0}},
          {"is_expandable", false},
          {"frames", OrderedJson::array()},
          {"blocks", std::move(blocks)}};
}

}  // namespace

void write_memory_snapshot(std::ostream& out, std::span<const SnapshotDevice> devices) {
  OrderedJson segments = OrderedJson::array(), traces = OrderedJson::array();
  for (size_t d = 0; d < devices.size(); ++d) {
    const DeviceTrace trace = follow(devices[d]);
    segments.push_back(segment(d, devices[d].reserved_bytes, trace.ranges));
    OrderedJson& entries = traces.emplace_back(OrderedJson::array());
    for (const TraceEntry& e : trace.entries) entries.push_back(entry(d, e));
  }
  out << OrderedJson{{"segments", std::move(segments)},
                     {"device_traces", std::move(traces)},
                     {"allocator_settings", OrderedJson::object()},
                     {"external_annotations", OrderedJson::array()}}
             .dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace vitrine
