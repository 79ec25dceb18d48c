// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/memory_snapshot.h"

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/trace/pickle_writer.h"

namespace vitrine {
namespace {

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

class SnapshotWriter {
 public:
  explicit SnapshotWriter(std::ostream& out) : pickle_(out) {}

  void write(std::span<const SnapshotDevice> devices, const std::vector<DeviceTrace>& traces) {
    std::vector<size_t> indices;
    for (size_t d = 0; d < devices.size(); ++d) indices.push_back(d);
    pickle_.dict([&] {
      pickle_.text("segments");
      pickle_.list(indices, [&](size_t d) { segment(d, devices[d].reserved_bytes, traces[d].ranges); });
      pickle_.text("device_traces");
      pickle_.list(indices,
                   [&](size_t d) { pickle_.list(traces[d].entries, [&](const TraceEntry& e) { entry(d, e); }); });
      pickle_.text("allocator_settings");
      pickle_.dict([] {});
      pickle_.text("external_annotations");
      pickle_.list(std::array<int, 0>{}, [](int) {});
    });
    pickle_.finish();
  }

 private:
  static int64_t address(size_t device, int64_t offset) { return (static_cast<int64_t>(device + 1) << 40) + offset; }

  void text(const char* key, std::string_view value) {
    pickle_.text(key);
    pickle_.text(value);
  }
  void number(const char* key, int64_t value) {
    pickle_.text(key);
    pickle_.number(value);
  }

  void frames(const MemoryEvent* holder, const MemoryEvent* release) {
    std::vector<std::pair<const char*, std::string>> lines;
    if (holder != nullptr) {
      lines = {{"tensor", holder->tensor},
               {"category", category_name(holder->category)},
               {"layer", holder->layer.empty() ? "none" : holder->layer},
               {"phase", phase_name(holder->phase)}};
    }
    if (release != nullptr) lines.emplace_back("freed in phase", phase_name(release->phase));
    pickle_.text("frames");
    pickle_.list(lines, [&](const auto& line) {
      pickle_.dict([&] {
        text("name", line.second);
        text("filename", line.first);
        number("line", 0);
      });
    });
  }

  void entry(size_t device, const TraceEntry& e) {
    pickle_.dict([&] {
      text("action", e.action);
      number("addr", address(device, e.offset));
      number("size", e.bytes);
      number("stream", 0);
      number("time_us", e.time_ns / 1000);
      frames(e.holder, e.release);
    });
  }

  void segment(size_t device, int64_t reserved_bytes, const std::vector<Range>& ranges) {
    int64_t held = 0;
    for (const Range& range : ranges) held += range.holder != nullptr ? range.bytes : 0;
    pickle_.dict([&] {
      number("device", static_cast<int64_t>(device));
      number("address", address(device, 0));
      number("total_size", reserved_bytes);
      for (const char* key : {"allocated_size", "active_size", "requested_size"}) number(key, held);
      number("stream", 0);
      text("segment_type", "large");
      pickle_.text("segment_pool_id");
      pickle_.pair(0, 0);
      pickle_.text("is_expandable");
      pickle_.boolean(false);
      frames(nullptr, nullptr);
      pickle_.text("blocks");
      pickle_.list(ranges, [&](const Range& range) { block(device, range); });
    });
  }

  void block(size_t device, const Range& range) {
    pickle_.dict([&] {
      number("address", address(device, range.offset));
      number("size", range.bytes);
      number("requested_size", range.bytes);
      text("state", range.holder != nullptr ? "active_allocated" : "inactive");
      frames(range.holder, nullptr);
      if (range.holder == nullptr) return;
      // Older readers look for the frames here.
      pickle_.text("history");
      pickle_.list(std::array{range}, [&](const Range& only) {
        pickle_.dict([&] {
          number("addr", address(device, only.offset));
          number("real_size", only.bytes);
          frames(only.holder, nullptr);
        });
      });
    });
  }

  PickleWriter pickle_;
};

}  // namespace

void write_memory_snapshot(std::ostream& out, std::span<const SnapshotDevice> devices) {
  std::vector<DeviceTrace> traces;
  for (const SnapshotDevice& device : devices) traces.push_back(follow(device));
  SnapshotWriter(out).write(devices, traces);
}

}  // namespace vitrine
