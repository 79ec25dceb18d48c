// SPDX-License-Identifier: Apache-2.0
#include "tools/program/plan_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/units.h"
#include "tools/program/device_sets.h"

namespace vitrine::tools {

namespace {

// Cells of the longest bar.
constexpr int kMostBarCells = 60, kFewestBarCells = 10;
// Of more sets of devices that need the same, tables show the least, the median and the most.
constexpr size_t kSetsApart = 6;

/// Devices under one name: the first of a set that needs the same, or one of a spread.
struct Group {
  std::string name;
  const PlannedDevice* device;
};

bool same_plan(const PlannedDevice& a, const PlannedDevice& b) {
  const auto same_held = [](const HeldBytes& x, const HeldBytes& y) { return x.layer == y.layer && x.bytes == y.bytes; };
  return a.samples_per_step == b.samples_per_step && a.capacity_bytes == b.capacity_bytes && a.plan.peak_bytes == b.plan.peak_bytes &&
         a.plan.peak_by_category == b.plan.peak_by_category &&
         std::equal(a.plan.held.begin(), a.plan.held.end(), b.plan.held.begin(), b.plan.held.end(), same_held);
}

/// Those whose peaks are the least, the median and the most.
std::vector<Group> spread_of_devices(const std::vector<PlannedDevice>& devices) {
  std::vector<const PlannedDevice*> sorted;
  for (const PlannedDevice& device : devices) sorted.push_back(&device);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->plan.peak_bytes < b->plan.peak_bytes; });
  std::vector<Group> groups;
  for (const auto& [what, device] : {std::pair{"min", sorted.front()}, {"median", sorted[sorted.size() / 2]}, {"max", sorted.back()}}) {
    groups.push_back({fmt::format("{} ({})", what, device->name), device});
  }
  return groups;
}

std::vector<Group> groups_of(const std::vector<PlannedDevice>& devices) {
  std::vector<std::string> names;
  for (const PlannedDevice& device : devices) names.push_back(device.name);
  const std::vector<DeviceSet> sets = group_devices(devices.size(), [&](size_t a, size_t b) { return same_plan(devices[a], devices[b]); });
  if (sets.size() > kSetsApart) return spread_of_devices(devices);
  std::vector<Group> groups;
  for (const DeviceSet& set : sets) groups.push_back({set.name(names), &devices[set.first()]});
  return groups;
}

std::string bytes_or_nothing(int64_t bytes) { return bytes == 0 ? std::string{} : format_bytes(bytes); }

std::string peak_table(const std::vector<Group>& groups, const Style& style) {
  std::vector<Table::Column> columns = {{"at the peak", Table::Align::left}};
  for (const Group& group : groups) columns.push_back({group.name});
  Table table(columns, "What each device needs");
  const auto row = [&](const std::string& name, const auto& value) {
    std::vector<std::string> cells = {name};
    for (const Group& group : groups) cells.push_back(value(*group.device));
    table.add_row(cells);
  };
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
    if (std::all_of(groups.begin(), groups.end(), [&](const Group& g) { return g.device->plan.peak_by_category[c] == 0; })) continue;
    row(category_name(static_cast<Category>(c)), [&](const PlannedDevice& d) { return bytes_or_nothing(d.plan.peak_by_category[c]); });
  }
  table.add_rule();
  row("peak", [](const PlannedDevice& d) { return format_bytes(d.plan.peak_bytes); });
  row("in bytes", [](const PlannedDevice& d) { return format_count(d.plan.peak_bytes); });
  row("reached in", [](const PlannedDevice& d) {
    return d.plan.peak_layer.empty() ? std::string(phase_name(d.plan.peak_phase))
                                     : fmt::format("{} {}", phase_name(d.plan.peak_phase), d.plan.peak_layer);
  });
  row("capacity", [](const PlannedDevice& d) { return d.capacity_bytes ? format_bytes(*d.capacity_bytes) : std::string("not known"); });
  row("left over", [](const PlannedDevice& d) {
    if (!d.capacity_bytes) return std::string();
    const int64_t left = *d.capacity_bytes - d.plan.peak_bytes;
    return left < 0 ? format_bytes(-left) + " too much" : format_bytes(left);
  });
  row("samples per step", [](const PlannedDevice& d) { return format_count(d.samples_per_step); });
  table.set_hint(
      "A run takes exactly this much from each device; a byte less is refused. What lies outside (CUDA's context, libraries) comes on top.");
  return table.str(style);
}

constexpr char kLetters[kCategoryCount + 1] = "PGOAWSC.";

std::string bars(const std::vector<Group>& groups, const Style& style) {
  int64_t longest = 1;
  size_t width = 0;
  for (const Group& group : groups) {
    longest = std::max(longest, group.device->plan.peak_bytes);
    width = std::max(width, group.name.size());
  }
  constexpr int kRoomForSize = 13;
  width = std::min(width, static_cast<size_t>(style.width - kFewestBarCells - kRoomForSize));
  const int cells = std::clamp(style.width - static_cast<int>(width) - kRoomForSize, kFewestBarCells, kMostBarCells);
  const double cell = static_cast<double>(longest) / cells;
  std::string text = style.bold("The same as bars") + "\n";
  BytesByCategory all{};
  for (const Group& group : groups) {
    std::string bar;
    double end = 0;
    for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
      const int64_t bytes = group.device->plan.peak_by_category[c];
      all[c] += bytes;
      end += static_cast<double>(bytes) / cell;
      bar.resize(std::max(bar.size(), static_cast<size_t>(std::lround(end))), kLetters[c]);
    }
    text += fmt::format("{:<{}}  {:<{}} {}\n", group.name.substr(0, width), width, bar, cells, format_bytes(group.device->plan.peak_bytes));
  }
  std::string legend;
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
    if (all[c] > 0) legend += fmt::format("{}{} {}", legend.empty() ? "" : ", ", kLetters[c], category_name(static_cast<Category>(c)));
  }
  return text + style.dim(wrap(fmt::format("{}; a letter is {}", legend, format_bytes(std::llround(cell))), style.width)) + "\n";
}

std::string held_table(const std::vector<Group>& groups, const Style& style) {
  std::vector<std::string> layers;
  std::vector<Table::Column> columns = {{"layer", Table::Align::left}};
  for (const Group& group : groups) {
    columns.push_back({group.name});
    for (const HeldBytes& held : group.device->plan.held) {
      if (std::find(layers.begin(), layers.end(), held.layer) == layers.end()) layers.push_back(held.layer);
    }
  }
  if (layers.empty()) return {};
  Table table(columns, "What each layer holds from its forward to its backward pass");
  std::vector<std::string> sum = {"in all"};
  for (const Group& group : groups) {
    int64_t bytes = 0;
    for (const HeldBytes& held : group.device->plan.held) bytes += held.bytes;
    sum.push_back(format_bytes(bytes));
  }
  for (const std::string& layer : layers) {
    std::vector<std::string> cells = {layer};
    for (const Group& group : groups) {
      int64_t bytes = 0;
      for (const HeldBytes& held : group.device->plan.held) bytes += held.layer == layer ? held.bytes : 0;
      cells.push_back(bytes_or_nothing(bytes));
    }
    table.add_row(cells);
  }
  table.add_rule();
  table.add_row(sum);
  return table.str(style);
}

}  // namespace

std::string plan_report(const std::vector<PlannedDevice>& devices, const Style& style) {
  const std::vector<Group> groups = groups_of(devices);
  return peak_table(groups, style) + "\n" + bars(groups, style) + "\n" + held_table(groups, style);
}

}  // namespace vitrine::tools
