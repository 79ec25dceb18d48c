// SPDX-License-Identifier: Apache-2.0
#include "tools/program/snapshot/torch_snapshot.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/printable.h"
#include "tools/program/snapshot/pickle_reader.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 46;    // of a block or segment, so that sums do not overflow
constexpr int64_t kMostEntries = int64_t{1} << 22;  // of a trace
constexpr size_t kMostPlaced = 10'000;              // blocks: their placement takes the square of it in comparisons

/// A value with its place in the file, for messages: "device_traces[0][17].size".
class Item {
 public:
  Item(const std::string& source, const Value& value, std::string place = {})
      : source_(source), value_(value), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: {}{}", source_, place_.empty() ? "" : place_ + ": ", what));
  }
  std::optional<Item> find(std::string_view key) const {
    const auto* const dict = std::get_if<Value::Dict>(&value_.value);
    if (dict == nullptr) fail("expected a dict");
    const auto found = dict->find(key);
    if (found == dict->end()) return std::nullopt;
    return Item(source_, *found->second, place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key));
  }
  Item operator[](std::string_view key) const {
    if (std::optional<Item> found = find(key)) return *found;
    fail(fmt::format("has no '{}'", key));
  }
  template <class Visit>
  void each(const Visit& visit) const {
    const auto* const list = std::get_if<Value::List>(&value_.value);
    if (list == nullptr) fail("expected a list");
    for (size_t i = 0; i < list->size(); ++i) visit(Item(source_, *(*list)[i], fmt::format("{}[{}]", place_, i)));
  }
  int64_t integer() const { return get<int64_t>("an integer"); }
  const std::string& text() const { return get<std::string>("text"); }
  int64_t bytes() const {
    const int64_t value = integer();
    if (value < 1 || value > kMostBytes) fail(fmt::format("{} is not a possible number of bytes", value));
    return value;
  }

 private:
  template <class T>
  const T& get(const char* expected) const {
    const T* const found = std::get_if<T>(&value_.value);
    if (found == nullptr) fail(fmt::format("expected {}", expected));
    return *found;
  }

  const std::string& source_;
  const Value& value_;
  std::string place_;
};

/// The innermost frame of Python outside PyTorch; else the innermost one; "" without frames.
std::string call_site(const Item& of) {
  std::string innermost, outside;
  const std::optional<Item> frames = of.find("frames");
  if (!frames) return "";
  frames->each([&](const Item& frame) {
    if (!outside.empty()) return;
    const std::string& file = frame["filename"].text();
    const int64_t line = frame["line"].integer();
    const std::string site = line == 0 ? fmt::format("{} {}", file, frame["name"].text())  // one of Vitrine's own
                                       : fmt::format("{} ({}:{})", frame["name"].text(), file, line);
    if (innermost.empty()) innermost = site;
    if (file.ends_with(".py") && file.find("/torch/") == std::string::npos) outside = site;
  });
  return excerpt(outside.empty() ? innermost : outside, 200);
}

/// Follows the trace of one device.
class TraceReader {
 public:
  explicit TraceReader(int index) { device_.index = index; }

  void add_entry(const Item& entry) {
    if (++device_.entries > kMostEntries) entry.fail("the trace is too long");
    now_ = static_cast<int32_t>(device_.entries);
    const std::string& action = entry["action"].text();
    if (action == "alloc") {
      take(entry, entry["addr"].integer(), entry["size"].bytes(), entry["stream"].integer(), now_);
    } else if (action == "free_completed") {
      give_back(entry);
    } else if (action == "segment_alloc" || action == "segment_map") {
      reserve(entry["size"].bytes());
    } else if (action == "segment_free" || action == "segment_unmap") {
      reserve(-entry["size"].bytes());
    }  // free_requested: the block is still in use by a stream; oom, snapshot and others change nothing
  }

  /// A segment as it is at the end of the trace.
  void add_segment(const Item& segment) {
    reserved_at_end_ += segment["total_size"].bytes();
    const int64_t stream = segment["stream"].integer();
    std::optional<int64_t> address;
    if (const auto found = segment.find("address")) address = found->integer();
    segment["blocks"].each([&](const Item& block) {
      const int64_t bytes = block["size"].bytes();
      // Blocks of older versions have no address: they fill the segment.
      if (const auto found = block.find("address")) address = found->integer();
      if (!address) block.fail("has no 'address'");
      if (block["state"].text() != "inactive" && !held_.contains(*address)) {
        const auto requested = block.find("requested_size");  // as in the trace; older versions have only the size
        take(block, *address, requested ? requested->bytes() : bytes, stream, 0);
      }
      *address += bytes;
    });
  }

  TorchDevice finish(const Item& snapshot) {
    for (const auto& [address, block] : held_) device_.blocks[block].end = now_ + 1;
    const int64_t at_start = reserved_at_end_ - change_;
    if (at_start < 0)
      snapshot.fail(
          fmt::format("device {}: the trace and the segments contradict each other: {} bytes reserved at its "
                      "beginning",
                      device_.index, at_start));
    device_.peak_reserved_bytes = at_start + most_change_;
    return std::move(device_);
  }

 private:
  void reserve(int64_t bytes) {
    change_ += bytes;
    most_change_ = std::max(most_change_, change_);
  }

  size_t add(const Item& item, int64_t bytes, int64_t stream, int32_t first) {
    const int32_t group = groups_.emplace(stream, static_cast<int32_t>(groups_.size())).first->second;
    const int64_t rounded = (bytes + TorchDevice::kRounding - 1) / TorchDevice::kRounding * TorchDevice::kRounding;
    device_.blocks.push_back({.bytes = rounded, .first = first, .end = first, .group = group});
    device_.sites.push_back(call_site(item));
    return device_.blocks.size() - 1;
  }
  void take(const Item& item, int64_t address, int64_t bytes, int64_t stream, int32_t first) {
    if (!held_.emplace(address, device_.blocks.size()).second)
      item.fail(fmt::format("allocates address {}, which is in use", address));
    add(item, bytes, stream, first);
  }
  void give_back(const Item& entry) {
    const int64_t address = entry["addr"].integer();
    const auto found = held_.find(address);
    // Traces are cut at their beginning: a block that was not allocated in it comes from before.
    const size_t block =
        found != held_.end() ? found->second : add(entry, entry["size"].bytes(), entry["stream"].integer(), 0);
    device_.blocks[block].end = now_;
    if (found != held_.end()) held_.erase(found);
  }

  TorchDevice device_;
  int32_t now_ = 0;
  std::map<int64_t, size_t> held_;  // blocks in use, by address
  std::map<int64_t, int32_t> groups_;
  int64_t reserved_at_end_ = 0, change_ = 0, most_change_ = 0;  // of the reserved bytes since the beginning
};

/// The event at which most bytes are in use: the first one of several.
int32_t peak_event(const std::vector<BlockLifetime>& blocks) {
  std::map<int32_t, int64_t> changes;
  for (const BlockLifetime& block : blocks) {
    changes[block.first] += block.bytes;
    changes[block.end] -= block.bytes;
  }
  int64_t sum = 0, largest = -1;
  int32_t peak = 0;
  for (const auto& [event, change] : changes) {
    sum += change;
    if (sum > largest) largest = sum, peak = event;
  }
  return peak;
}

/// The blocks in use within `reach` events of the peak.
std::vector<BlockLifetime> around(const std::vector<BlockLifetime>& blocks, int64_t peak, int64_t reach) {
  std::vector<BlockLifetime> near;
  std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(near),
               [&](const BlockLifetime& b) { return b.first <= peak + reach && b.end > peak - reach; });
  return near;
}

}  // namespace

std::vector<TorchDevice> read_torch_snapshot(const std::string& source, std::string_view text) {
  Values values;
  const bool is_json = text.starts_with('{');
  const Item snapshot(source, is_json ? read_json(source, text, values) : read_pickle(source, text, values));
  std::vector<TraceReader> readers;
  int64_t entries = 0;
  snapshot["device_traces"].each([&](const Item& trace) {
    TraceReader& reader = readers.emplace_back(static_cast<int>(readers.size()));
    trace.each([&](const Item& entry) { reader.add_entry(entry), ++entries; });
  });
  if (entries == 0)
    snapshot.fail(
        "it has no history of allocations; record one in the job, before what is of interest: "
        "torch.cuda.memory._record_memory_history()");
  snapshot["segments"].each([&](const Item& segment) {
    const int64_t device = segment["device"].integer();
    if (device < 0 || device >= std::ssize(readers))
      segment.fail(fmt::format("device {} has no trace; there are {}", device, readers.size()));
    readers[static_cast<size_t>(device)].add_segment(segment);
  });
  std::vector<TorchDevice> devices;
  for (TraceReader& reader : readers) {
    if (TorchDevice device = reader.finish(snapshot); !device.blocks.empty()) devices.push_back(std::move(device));
  }
  if (devices.empty()) snapshot.fail("no device has a block");
  return devices;
}

SnapshotExplanation explain_snapshot(const TorchDevice& device) {
  const int32_t peak = peak_event(device.blocks);
  // Long traces: as many events around the peak as their blocks can be placed in seconds.
  int64_t reach = device.entries + 1;
  std::vector<BlockLifetime> placed = device.blocks;
  while (placed.size() > kMostPlaced && reach > 1) placed = around(device.blocks, peak, reach /= 2);
  SnapshotExplanation result{.peak_allocated_bytes = largest_sum(device.blocks),
                             .lower_bound_bytes = height_bound(placed),
                             .placed_bytes = place_blocks(placed, 0).height,
                             .placed_blocks = placed.size(),
                             .at_peak = {}};
  for (size_t i = 0; i < device.blocks.size(); ++i) {
    if (device.blocks[i].first <= peak && peak < device.blocks[i].end) result.at_peak.push_back(i);
  }
  std::stable_sort(result.at_peak.begin(), result.at_peak.end(),
                   [&](size_t a, size_t b) { return device.blocks[a].bytes > device.blocks[b].bytes; });
  return result;
}

}  // namespace vitrine::tools
