// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/units.h"
#include "tools/program/render/report_tables.h"

namespace vitrine::tools {

namespace {

// With more sets of devices than this, tables show minimum, median and maximum.
constexpr size_t kGroupsApart = 6;
// Letters of the longest bar.
constexpr int kMostBarCells = 60, kFewestBarCells = 10;

/// Devices under one name: a set that agrees, or one device of a spread.
struct Group {
  std::string name;
  const DeviceRecord* device;
  DeviceSet set;
};

bool same_memory(const DeviceRecord& a, const DeviceRecord& b) {
  return a.pool.peak_bytes == b.pool.peak_bytes && a.pool.peak_by_category == b.pool.peak_by_category &&
         a.pool.peak_phase == b.pool.peak_phase && a.pool.peak_layer == b.pool.peak_layer &&
         a.pool.capacity_bytes == b.pool.capacity_bytes && a.plan.peak_bytes == b.plan.peak_bytes &&
         a.plan.peak_by_category == b.plan.peak_by_category;
}

bool same_plan(const DeviceRecord& a, const DeviceRecord& b) {
  const auto same_held = [](const HeldBytes& x, const HeldBytes& y) {
    return x.layer == y.layer && x.bytes == y.bytes;
  };
  return a.samples_per_step == b.samples_per_step && a.pool.capacity_bytes == b.pool.capacity_bytes &&
         a.plan.peak_bytes == b.plan.peak_bytes && a.plan.peak_by_category == b.plan.peak_by_category &&
         std::ranges::equal(a.plan.held_activations, b.plan.held_activations, same_held);
}

std::vector<Group> groups_of(const std::vector<DeviceRecord>& devices,
                             const std::function<bool(const DeviceRecord&, const DeviceRecord&)>& same) {
  std::vector<Group> groups;
  for (DeviceSet& set :
       group_devices(devices.size(), [&](size_t a, size_t b) { return same(devices[a], devices[b]); })) {
    groups.push_back({set.name(names_of(devices)), &devices[set.first()], set});
  }
  return groups;
}

/// Devices with the same plan; of too many groups those with the least, the median and the largest peak.
std::vector<Group> plan_groups(const std::vector<DeviceRecord>& devices) {
  std::vector<Group> groups = groups_of(devices, same_plan);
  if (groups.size() <= kGroupsApart) return groups;
  std::vector<size_t> sorted = all_devices(devices.size()).members;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](size_t a, size_t b) { return devices[a].plan.peak_bytes < devices[b].plan.peak_bytes; });
  groups.clear();
  for (const auto& [what, d] :
       {std::pair{"min", sorted.front()}, {"median", sorted[sorted.size() / 2]}, {"max", sorted.back()}}) {
    groups.push_back({fmt::format("{} ({})", what, devices[d].device), &devices[d], {{d}}});
  }
  return groups;
}

/// The categories in which any device held something, or was planned to.
std::vector<Category> held_categories(const std::vector<DeviceRecord>& devices) {
  std::vector<Category> categories;
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
    const auto has = [&](const DeviceRecord& d) {
      return d.pool.peak_by_category[c] != 0 || d.plan.peak_by_category[c] != 0;
    };
    if (std::any_of(devices.begin(), devices.end(), has)) categories.push_back(static_cast<Category>(c));
  }
  return categories;
}

/// Whether the peak of any device exceeds its lower bound, as measured or as planned.
bool has_fragmentation(const std::vector<DeviceRecord>& devices) {
  const std::vector<Category> held = held_categories(devices);
  return !held.empty() && held.back() == Category::fragmentation;
}

/// Two columns for each group: measured and planned.
Table memory_of_groups(const std::vector<Group>& groups, const std::vector<DeviceRecord>& devices) {
  std::vector<Table::Column> columns = {{"at the peak", Table::Align::left}};
  for (const Group& group : groups) {
    columns.push_back({group.name});
    columns.push_back({"planned", Table::Align::right, 1});
  }
  Table table(columns, "Where the memory went");
  const auto add = [&](const char* name, const auto& measured, const auto& planned) {
    std::vector<std::string> cells = {name};
    for (const Group& group : groups) cells.insert(cells.end(), {measured(*group.device), planned(*group.device)});
    table.add_row(cells);
  };
  const auto nothing = [](const DeviceRecord&) { return std::string(); };
  for (const Category category : held_categories(devices)) {
    const auto c = static_cast<size_t>(category);
    const auto of = [c](const auto& peaks) { return bytes_or_nothing(peaks.peak_by_category[c]); };
    add(
        category_name(category), [&](const DeviceRecord& d) { return of(d.pool); },
        [&](const DeviceRecord& d) { return of(d.plan); });
  }
  table.add_rule_above_total();
  add(
      "peak", [](const DeviceRecord& d) { return format_bytes(d.pool.peak_bytes); }, planned_peak);
  add(
      "in bytes", [](const DeviceRecord& d) { return format_count(d.pool.peak_bytes); },
      [](const DeviceRecord& d) { return format_count(d.plan.peak_bytes); });
  if (has_fragmentation(devices)) {
    add(
        "lower bound", [](const DeviceRecord& d) { return format_count(allocated_bytes(d.pool.peak_by_category)); },
        [](const DeviceRecord& d) { return format_count(allocated_bytes(d.plan.peak_by_category)); });
  }
  add(
      "reached in", [](const DeviceRecord& d) { return place_name(d.pool.peak_phase, d.pool.peak_layer); }, nothing);
  add(
      "capacity", [](const DeviceRecord& d) { return format_bytes(d.pool.capacity_bytes); }, nothing);
  std::vector<std::string> outside = {"outside the pool"};
  for (const Group& group : groups) {
    const Spread spread = spread_of(group.set, [&](size_t d) { return static_cast<double>(devices[d].outside_bytes); });
    const std::string least = format_bytes(std::llround(spread.least)), most = format_bytes(std::llround(spread.most));
    outside.insert(outside.end(), {least == most ? most : fmt::format("{} to {}", least, most), ""});
  }
  table.add_row(outside);
  return table;
}

/// For many devices that all differ.
Table memory_spread(const std::vector<DeviceRecord>& devices) {
  const DeviceSet all = all_devices(devices.size());
  const std::vector<std::string> names = names_of(devices);
  Table table({{"at the peak", Table::Align::left}, {"min"}, {"median"}, {"max"}, {"max at"}},
              fmt::format("Where the memory went: {}", all.name(names)));
  const auto add = [&](const char* name, const std::function<int64_t(const DeviceRecord&)>& bytes) {
    const Spread spread = spread_of(all, [&](size_t d) { return static_cast<double>(bytes(devices[d])); });
    const auto text = [](double value) { return bytes_or_nothing(std::llround(value)); };
    table.add_row({name, text(spread.least), text(spread.median), text(spread.most),
                   spread.least == spread.most ? "" : names[spread.most_at]});
  };
  for (const Category category : held_categories(devices)) {
    add(category_name(category),
        [c = static_cast<size_t>(category)](const DeviceRecord& d) { return d.pool.peak_by_category[c]; });
  }
  table.add_rule_above_total();
  add("peak", [](const DeviceRecord& d) { return d.pool.peak_bytes; });
  if (has_fragmentation(devices))
    add("lower bound", [](const DeviceRecord& d) { return allocated_bytes(d.pool.peak_by_category); });
  add("capacity", [](const DeviceRecord& d) { return d.pool.capacity_bytes; });
  add("outside the pool", [](const DeviceRecord& d) { return d.outside_bytes; });
  const auto met = std::count_if(devices.begin(), devices.end(), [](const DeviceRecord& d) { return d.as_planned(); });
  table.set_hint(fmt::format("{} of {} devices used exactly what was planned, to the byte.", met, devices.size()));
  return table;
}

/// "layer1.0.conv1" is inside "layer1.0".
bool is_inside(const std::string& layer, const std::string& block) { return layer.starts_with(block + "."); }

int64_t held_bytes(const DevicePlan& plan, const std::string* layer = nullptr) {
  int64_t bytes = 0;
  for (const HeldBytes& held : plan.held_activations)
    bytes += layer == nullptr || held.layer == *layer || is_inside(held.layer, *layer) ? held.bytes : 0;
  return bytes;
}

/// "P" for parameters, "." for fragmentation.
char letter_of(Category category) {
  return category == Category::fragmentation ? '.' : static_cast<char>(std::toupper(category_name(category)[0]));
}

}  // namespace

std::string planned_peak(const DeviceRecord& d) {
  return d.as_planned() ? "to the byte" : format_bytes(d.plan.peak_bytes);
}

Table memory_table(const std::vector<DeviceRecord>& devices) {
  const std::vector<Group> groups = groups_of(devices, same_memory);
  return groups.size() <= kGroupsApart ? memory_of_groups(groups, devices) : memory_spread(devices);
}

std::vector<Table> memory_tables(const std::vector<DeviceRecord>& devices) {
  const std::vector<Group> groups = groups_of(devices, same_memory);
  if (groups.size() > kGroupsApart) return {memory_spread(devices)};
  std::vector<Table> tables;
  for (const Group& group : groups) tables.push_back(memory_of_groups({group}, devices));
  return tables;
}

std::string describe_outside(const std::vector<DeviceRecord>& devices, int processes) {
  int64_t outside = 0;
  std::map<std::string, int64_t> by_owner;
  for (const DeviceRecord& d : devices) {
    outside += d.outside_bytes;
    for (const auto& [owner, bytes] : d.outside_by_owner) by_owner[owner] += bytes;
  }
  std::vector<std::string> parts;
  for (const auto& [owner, name] : {std::pair{"context", "CUDA's context and other processes"},
                                    {"cublaslt", "cuBLASLt"},
                                    {"cudnn", "cuDNN"},
                                    {"nccl", "NCCL"},
                                    {"other", "kernels and what libraries take later"},
                                    {"code", "code"},
                                    {"heap", "libraries, loader and threads"},
                                    {"dataset", "data set"},
                                    {"checkpoint", "copy for checkpoints"},
                                    {"weights", "copies of weights that were loaded or saved"},
                                    {"shared", "shared by processes"},
                                    {"released", "released before the end"}}) {
    if (const auto bytes = by_owner.find(owner); bytes != by_owner.end())
      parts.push_back(fmt::format("{} {}", name, format_bytes(bytes->second)));
  }
  const std::string list = parts.empty() ? "" : fmt::format(": {}", fmt::join(parts, ", "));
  if (!devices.empty() && devices.front().device.find("cuda:") != std::string::npos) {
    return fmt::format(
        "Categories are those at the moment of the peak. {} of GPU memory lie outside the pools{}. They are measured, "
        "each as the difference that its creation made, not planned, and shared equally by the logical devices of one "
        "GPU.",
        format_bytes(outside), list);
  }
  return fmt::format(
      "Categories are those at the moment of the peak. {} at most {} outside the pools{}. This is the peak of the "
      "resident set minus the pools, divided equally among {}CPU devices.",
      processes == 1 ? "This process held" : fmt::format("{} processes held", processes), format_bytes(outside), list,
      processes == 1 ? "" : "each process's ");
}

Table plan_table(const std::vector<DeviceRecord>& devices) {
  const std::vector<Group> groups = plan_groups(devices);
  std::vector<Table::Column> columns = {{"at the peak", Table::Align::left}};
  for (const Group& group : groups) columns.push_back({group.name});
  Table table(columns, "What each device needs");
  const bool fragmented = has_fragmentation(devices);
  const auto add = [&](const std::string& name, const auto& value) {
    std::vector<std::string> cells = {name};
    for (const Group& group : groups) cells.push_back(value(*group.device));
    table.add_row(cells);
  };
  for (const Category category : held_categories(devices)) {
    add(category_name(category), [c = static_cast<size_t>(category)](const DeviceRecord& d) {
      return bytes_or_nothing(d.plan.peak_by_category[c]);
    });
  }
  table.add_rule_above_total();
  add("peak", [](const DeviceRecord& d) { return format_bytes(d.plan.peak_bytes); });
  add("in bytes", [](const DeviceRecord& d) { return format_count(d.plan.peak_bytes); });
  if (fragmented)
    add("lower bound", [](const DeviceRecord& d) { return format_count(allocated_bytes(d.plan.peak_by_category)); });
  add("reached in", [](const DeviceRecord& d) { return place_name(d.plan.peak_phase, d.plan.peak_layer); });
  const auto in_flight = [](const DeviceRecord& d) {
    return d.memory && d.bytes_at_peak(Category::parameters) + d.bytes_at_peak(Category::gradients) +
                               d.bytes_at_peak(Category::optimizer) >
                           states_bytes(d);
  };
  if (std::ranges::any_of(devices, in_flight))
    add("states alone", [](const DeviceRecord& d) { return format_bytes(states_bytes(d)); });
  add("capacity", [](const DeviceRecord& d) {
    return d.pool.capacity_bytes > 0 ? format_bytes(d.pool.capacity_bytes) : "not known";
  });
  if (std::ranges::any_of(devices, [](const DeviceRecord& d) { return d.pool.capacity_bytes > 0; }))
    add("left over", [](const DeviceRecord& d) {
      if (d.pool.capacity_bytes == 0) return std::string();
      const int64_t left = d.pool.capacity_bytes - d.plan.peak_bytes;
      return left < 0 ? format_bytes(-left) + " missing" : format_bytes(left);
    });
  add("samples per step", [](const DeviceRecord& d) { return format_count(d.samples_per_step); });
  const WorkspacePlan& workspace = devices.front().plan.workspace;
  std::string hint = "Exact. CUDA context and libraries are not included.";
  if (workspace.bytes > workspace.least_bytes) {
    hint += fmt::format(" With less memory the workspace shrinks, to {} at least, and convolutions get slower.",
                        format_bytes(workspace.least_bytes));
  }
  if (!workspace.unknown.empty()) {
    hint += fmt::format(" The workspace of {} is assumed, because {} cannot be asked here.",
                        format_bytes(workspace.bytes), devices.front().device.starts_with("cpu:") ? "oneDNN" : "cuDNN");
  }
  if (std::ranges::any_of(devices, in_flight))
    hint += " States alone: parameters, gradients and optimizer's states, without buckets in flight.";
  if (fragmented) hint += " Lower bound: the largest sum of blocks in use at once; no placement needs less.";
  table.set_hint(hint);
  return table;
}

std::optional<Table> movement_table(const RunRecord& run) {
  const std::vector<DeviceRecord>& devices = run.devices;
  if (devices.size() < 2 && devices.front().communication.rows.empty()) return std::nullopt;
  constexpr std::array kPhases = {Phase::stage,        Phase::scatter, Phase::replicate, Phase::gather,
                                  Phase::scatter_grad, Phase::reduce,  Phase::broadcast};
  const auto agree = [&](size_t a, size_t b) {
    return std::ranges::all_of(kPhases, [&](Phase p) { return moved_bytes(run, a, p) == moved_bytes(run, b, p); });
  };
  const std::vector<DeviceSet> sets = group_devices(devices.size(), agree);
  const bool apart = sets.size() <= kGroupsApart;
  std::vector<Table::Column> columns = {{"sent or received", Table::Align::left}};
  for (const DeviceSet& set : sets) {
    if (apart) columns.push_back({set.name(names_of(devices)) + (set.single() ? "" : ", each")});
  }
  if (!apart) columns.insert(columns.end(), {{"min"}, {"median"}, {"max"}});
  Table table(columns, "What moves in a step");
  for (const Phase phase : kPhases) {
    const auto moved = [&](size_t d) { return static_cast<double>(moved_bytes(run, d, phase)); };
    const Spread all = spread_of(all_devices(devices.size()), moved);
    if (all.most == 0) continue;
    const auto text = [](double bytes) { return bytes_or_nothing(std::llround(bytes)); };
    std::vector<std::string> cells = {phase_name(phase)};
    if (!apart) cells.insert(cells.end(), {text(all.least), text(all.median), text(all.most)});
    for (const DeviceSet& set : sets) {
      if (apart) cells.push_back(bytes_or_nothing(moved_bytes(run, set.first(), phase)));
    }
    table.add_row(cells);
  }
  std::string hint =
      "Exact, for each device: what it sends or receives in a step, whichever is more. A copy counts on the device "
      "that receives it.";
  const bool with_nccl = devices.size() > 2 && devices.front().device.starts_with("cuda:");
  if (run.scheme.reduce == ReducerKind::gpu0 && with_nccl && !run.exact_price) {
    hint += fmt::format(" reduce and broadcast: exact for direct copies; NCCL: a chain, {} for each device.",
                        format_bytes(moved_bytes(run, devices.size() - 1, Phase::reduce)));
  }
  table.set_hint(hint);
  return table.is_empty() ? std::nullopt : std::optional(table);
}

std::optional<Table> held_table(const std::vector<DeviceRecord>& devices) {
  const std::vector<Group> groups = plan_groups(devices);
  std::vector<std::string> layers, sum = {"total"};
  std::vector<Table::Column> columns = {{"layer", Table::Align::left}};
  for (const Group& group : groups) {
    columns.push_back({group.name});
    sum.push_back(format_bytes(held_bytes(group.device->plan)));
    for (const HeldBytes& held : group.device->plan.held_activations) {
      if (std::find(layers.begin(), layers.end(), held.layer) == layers.end()) layers.push_back(held.layer);
    }
  }
  if (layers.empty()) return std::nullopt;
  const std::vector<std::string> blocks = layers;
  std::erase_if(layers, [&](const std::string& layer) {
    return std::any_of(blocks.begin(), blocks.end(), [&](const std::string& b) { return is_inside(layer, b); });
  });
  Table table(columns, "What each layer holds from its forward to its backward pass");
  for (const std::string& layer : layers) {
    std::vector<std::string> cells = {layer};
    for (const Group& group : groups) cells.push_back(bytes_or_nothing(held_bytes(group.device->plan, &layer)));
    table.add_row(cells);
  }
  table.add_rule_above_total();
  table.add_row(sum);
  return table;
}

std::optional<Table> exact_price_table(std::span<const RunRecord> runs) {
  if (runs.empty() || !runs.front().exact_price) return std::nullopt;
  using Align = Table::Align;
  Table table({{"mode", Align::left}, {"cost", Align::left}, {"exact"}, {"ordinary"}}, "What exact mode costs");
  for (const RunRecord& run : runs) {
    const ExactPrice& price = *run.exact_price;
    table.add_row({run.name, "moved in a step by reductions", format_bytes(price.sent_bytes),
                   format_bytes(price.ordinary_sent_bytes)});
    table.add_row({"", "peak memory", format_bytes(price.peak_bytes), format_bytes(price.ordinary_peak_bytes)});
    if (!run.devices.empty() && run.devices.front().phases.wall_seconds > 0)
      table.add_row({"", "adding leaves' gradients (ms)", format_ms(leaf_seconds_per_step(run)), format_ms(0.0)});
  }
  table.set_hint("Each figure is the largest among the devices.");
  return table;
}

std::optional<Table> frontier_table(const PlanRecord& record) {
  if (!record.frontier || record.frontier->empty()) return std::nullopt;
  const std::vector<RecomputationRecord>& rows = *record.frontier;
  Table table({{"fullest device", Table::Align::right, 1},
               {"in bytes"},
               {"less"},
               {"added time"},
               {"fits"},
               {"--recompute", Table::Align::verbatim}},
              "What recomputation saves and costs");
  for (const RecomputationRecord& row : rows) {
    table.add_row({format_bytes(row.peak_bytes), format_count(row.peak_bytes), format_share(row.saved),
                   row.added_time > 0.0 ? fmt::format("+{:.1f} %", 100.0 * row.added_time) : std::string(),
                   !row.fits     ? ""
                   : !*row.fits  ? "no"
                   : row.fastest ? "yes, with least time"
                                 : "yes",
                   row.recompute.empty() ? "(nothing)" : fmt::format("{}", fmt::join(row.recompute, ","))});
  }
  table.set_hint(
      "Each row is the fastest choice with so few bytes. Bytes are exact, with a workspace that does not shrink; time "
      "is estimated, as a share of the forward and backward pass.");
  return table;
}

std::string plan_bars(const std::vector<DeviceRecord>& devices, const Style& style) {
  const std::vector<Group> groups = plan_groups(devices);
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
  std::string text = style.bold("The same as bars") + "\n", legend;
  for (const Group& group : groups) {
    std::string bar;
    double end = 0;
    for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
      end += static_cast<double>(group.device->plan.peak_by_category[c]) / cell;
      bar.resize(std::max(bar.size(), static_cast<size_t>(std::lround(end))), letter_of(static_cast<Category>(c)));
    }
    text += fmt::format("{:<{}}  {:<{}} {}\n", group.name.substr(0, width), width, bar, cells,
                        format_bytes(group.device->plan.peak_bytes));
  }
  for (const Category category : held_categories(devices)) {
    legend += fmt::format("{}{} {}", legend.empty() ? "" : ", ", letter_of(category), category_name(category));
  }
  return text +
         style.dim(wrap(fmt::format("{}; each letter is {}", legend, format_bytes(std::llround(cell))), style.width)) +
         "\n";
}

}  // namespace vitrine::tools
