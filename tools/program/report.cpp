// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>

#include <fmt/format.h>

#include "runtime/units.h"
#include "tools/program/device_sets.h"

namespace vitrine::tools {

namespace {

// With more devices than this their times are shown as a spread; with more sets of devices that do the same, all are one.
constexpr size_t kDevicesApart = 4, kSetsApart = 3;
// With more sets of devices whose memory agrees, a spread is shown.
constexpr size_t kMemorySetsApart = 6;

std::string bytes_or_nothing(int64_t bytes) { return bytes == 0 ? std::string{} : format_bytes(bytes); }

bool is_as_planned(const DeviceFigures& device) {
  return device.plan.peak_bytes == device.pool.peak_bytes && device.plan.peak_by_category == device.pool.peak_by_category;
}

const PhaseRow* find_row(const PhaseTable& table, Phase phase) {
  const auto found = std::find_if(table.rows.begin(), table.rows.end(), [&](const PhaseRow& row) { return row.phase == phase; });
  return found == table.rows.end() ? nullptr : &*found;
}

// Waits that never took this share of a step are told together, and so are all but the longest.
constexpr double kWaitShareTold = 0.001;
constexpr size_t kWaitCausesTold = 6;

/// The causes of waiting of all tables that are worth a row, longest first.
std::vector<std::string> wait_causes(const std::vector<PhaseTable>& tables) {
  std::map<std::string, double> seconds;
  for (const PhaseTable& table : tables) {
    for (const WaitRow& wait : table.waits) {
      if (wait.share >= kWaitShareTold) seconds[wait.cause] += wait.seconds;
    }
  }
  std::vector<std::string> causes;
  for (const auto& [cause, total] : seconds) causes.push_back(cause);
  std::stable_sort(causes.begin(), causes.end(), [&](const std::string& a, const std::string& b) { return seconds[a] > seconds[b]; });
  causes.resize(std::min(causes.size(), kWaitCausesTold));
  return causes;
}

/// What a row shows of each device.
struct TimeRow {
  std::string name;
  std::function<PhaseRow(const PhaseTable&)> of;
};

PhaseRow phase_of(const PhaseTable& table, Phase phase) {
  const PhaseRow* row = find_row(table, phase);
  return row == nullptr ? PhaseRow{} : *row;
}

PhaseRow wait_of(const PhaseTable& table, const std::string& cause) {
  const auto wait = std::find_if(table.waits.begin(), table.waits.end(), [&](const WaitRow& row) { return row.cause == cause; });
  PhaseRow row;
  if (wait != table.waits.end()) row.seconds = wait->seconds, row.share = wait->share;
  return row;
}

/// The phases that any device of `tables` was in, waits with their causes.
std::vector<TimeRow> time_rows(const std::vector<PhaseTable>& tables) {
  std::vector<TimeRow> rows;
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    if (std::none_of(tables.begin(), tables.end(), [&](const PhaseTable& t) { return find_row(t, phase) != nullptr; })) continue;
    rows.push_back({phase_name(phase), [phase](const PhaseTable& t) { return phase_of(t, phase); }});
    if (phase != Phase::wait) continue;
    for (const std::string& cause : wait_causes(tables)) {
      rows.push_back({"  for " + cause, [cause](const PhaseTable& t) { return wait_of(t, cause); }});
    }
  }
  return rows;
}

double per_step(double value, const PhaseTable& table) { return table.steps > 0 ? value / static_cast<double>(table.steps) : 0.0; }
int64_t bytes_per_step(const PhaseRow& row, const PhaseTable& table) { return table.steps > 0 ? row.bytes / table.steps : 0; }

std::vector<Table::Column> joined(std::vector<Table::Column> columns) {
  for (size_t c = 1; c < columns.size(); ++c) columns[c].joined = true;
  return columns;
}

/// Four columns for each device.
void add_devices_apart(std::vector<Table::Column>& columns, std::span<const std::string> devices) {
  for (const std::string& device : devices) {
    for (const Table::Column& column : joined({{device}, {"share"}, {"hidden"}, {"moved"}})) columns.push_back(column);
  }
}

std::vector<std::string> cells_of(const PhaseRow& row, const PhaseTable& t) {
  return {format_ms(per_step(row.seconds, t)), format_share(row.share), format_ms(per_step(row.hidden_seconds, t)),
          bytes_or_nothing(bytes_per_step(row, t))};
}

std::string times_apart(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables, const std::string& title,
                        const Style& style) {
  std::vector<Table::Column> columns = {{"ms per step", Table::Align::left}};
  add_devices_apart(columns, devices);
  Table table(columns, title);
  const auto add = [&](const std::string& name, const std::function<PhaseRow(const PhaseTable&)>& of) {
    std::vector<std::string> cells = {name};
    for (const PhaseTable& t : tables) {
      for (std::string& cell : cells_of(of(t), t)) cells.push_back(std::move(cell));
    }
    table.add_row(cells);
  };
  for (const TimeRow& row : time_rows(tables)) add(row.name, row.of);
  table.add_rule();
  add("step", [](const PhaseTable& t) { return PhaseRow{Phase::step, t.ordinal, t.wall_seconds, t.named_share, 0, 0, 0.0}; });
  table.set_hint("Each device's column adds up to its step. 'hidden' ran beside other work and cost no time; 'wait' says what for.");
  return table.str(style);
}

/// One table for devices that do the same.
std::string times_of_set(const DeviceSet& set, const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables,
                         const std::string& title, const Style& style) {
  Table table({{"ms per step", Table::Align::left}, {"min"}, {"median"}, {"max"}, {"max at"}, {"share"}, {"hidden"}, {"moved"}},
              fmt::format("{}: {}", title, set.name(devices)));
  std::vector<PhaseTable> members;
  for (const size_t member : set.members) members.push_back(tables[member]);
  const auto add = [&](const TimeRow& row) {
    const auto spread = [&](const auto& value) { return spread_of(set, [&](size_t d) { return value(row.of(tables[d]), tables[d]); }); };
    const Spread ms = spread([](const PhaseRow& r, const PhaseTable& t) { return per_step(r.seconds, t); });
    const auto longest =
        std::find_if(set.members.begin(), set.members.end(), [&](size_t d) { return per_step(row.of(tables[d]).seconds, tables[d]) == ms.most; });
    table.add_row({row.name, format_ms(ms.least), format_ms(ms.median), format_ms(ms.most), ms.most > 0 ? devices[*longest] : std::string(),
                   format_share(spread([](const PhaseRow& r, const PhaseTable&) { return r.share; }).median),
                   format_ms(spread([](const PhaseRow& r, const PhaseTable& t) { return per_step(r.hidden_seconds, t); }).median),
                   bytes_or_nothing(std::llround(
                       spread([](const PhaseRow& r, const PhaseTable& t) { return static_cast<double>(bytes_per_step(r, t)); }).median))});
  };
  for (const TimeRow& row : time_rows(members)) add(row);
  table.add_rule();
  add({"step", [](const PhaseTable& t) { return PhaseRow{Phase::step, t.ordinal, t.wall_seconds, t.named_share, 0, 0, 0.0}; }});
  table.set_hint("share, hidden and moved: the median of the devices. 'hidden' ran beside other work and cost no time; 'wait' says what for.");
  return table.str(style);
}

/// Whether two devices are in the same phases of a step.
bool do_the_same(const PhaseTable& a, const PhaseTable& b) {
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    if (phase == Phase::wait || phase == Phase::data) continue;  // which depend on who is late
    if ((find_row(a, phase) == nullptr) != (find_row(b, phase) == nullptr)) return false;
  }
  return true;
}

bool same_memory(const DeviceFigures& a, const DeviceFigures& b) {
  return a.pool.peak_bytes == b.pool.peak_bytes && a.pool.peak_by_category == b.pool.peak_by_category && a.pool.peak_phase == b.pool.peak_phase &&
         a.pool.peak_layer == b.pool.peak_layer && a.pool.capacity_bytes == b.pool.capacity_bytes && a.plan.peak_bytes == b.plan.peak_bytes &&
         a.plan.peak_by_category == b.plan.peak_by_category;
}

/// The categories of which any device had something, or was planned to have.
std::vector<Category> held_categories(const std::vector<DeviceFigures>& devices) {
  std::vector<Category> categories;
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
    const auto has = [&](const DeviceFigures& d) { return d.pool.peak_by_category[c] != 0 || d.plan.peak_by_category[c] != 0; };
    if (std::any_of(devices.begin(), devices.end(), has)) categories.push_back(static_cast<Category>(c));
  }
  return categories;
}

/// Each set has two columns: what was measured, and what was planned.
std::string memory_of_sets(const std::vector<DeviceSet>& sets, const std::vector<std::string>& names, const std::vector<DeviceFigures>& devices,
                           const Style& style) {
  std::vector<Table::Column> columns = {{"at the peak", Table::Align::left}};
  for (const DeviceSet& set : sets) {
    for (const Table::Column& column : joined({{set.name(names)}, {"planned"}})) columns.push_back(column);
  }
  Table table(columns, "Where the memory went");
  const auto add = [&](const char* name, const auto& measured, const auto& planned) {
    std::vector<std::string> cells = {name};
    for (const DeviceSet& set : sets) cells.insert(cells.end(), {measured(devices[set.first()], set), planned(devices[set.first()])});
    table.add_row(cells);
  };
  const auto nothing = [](const DeviceFigures&) { return std::string(); };
  for (const Category category : held_categories(devices)) {
    const auto c = static_cast<size_t>(category);
    add(
        category_name(category), [&](const DeviceFigures& d, const DeviceSet&) { return bytes_or_nothing(d.pool.peak_by_category[c]); },
        [&](const DeviceFigures& d) { return bytes_or_nothing(d.plan.peak_by_category[c]); });
  }
  table.add_rule();
  add(
      "peak", [](const DeviceFigures& d, const DeviceSet&) { return format_bytes(d.pool.peak_bytes); }, describe_plan);
  add(
      "reached in",
      [](const DeviceFigures& d, const DeviceSet&) {
        return d.pool.peak_layer.empty() ? std::string(phase_name(d.pool.peak_phase))
                                         : fmt::format("{} {}", phase_name(d.pool.peak_phase), d.pool.peak_layer);
      },
      nothing);
  add(
      "capacity", [](const DeviceFigures& d, const DeviceSet&) { return format_bytes(d.pool.capacity_bytes); }, nothing);
  add(
      "outside the pool",
      [&](const DeviceFigures&, const DeviceSet& set) {
        const Spread outside = spread_of(set, [&](size_t d) { return static_cast<double>(devices[d].outside_bytes); });
        const std::string least = format_bytes(std::llround(outside.least)), most = format_bytes(std::llround(outside.most));
        return least == most ? most : fmt::format("{} to {}", least, most);
      },
      nothing);
  return table.str(style);
}

/// Of many devices that all differ.
std::string memory_spread(const std::vector<std::string>& names, const std::vector<DeviceFigures>& devices, const Style& style) {
  const DeviceSet all = all_devices(devices.size());
  Table table({{"at the peak", Table::Align::left}, {"min"}, {"median"}, {"max"}, {"max at"}},
              fmt::format("Where the memory went: {}", all.name(names)));
  const auto add = [&](const char* name, const std::function<int64_t(const DeviceFigures&)>& bytes) {
    const Spread spread = spread_of(all, [&](size_t d) { return static_cast<double>(bytes(devices[d])); });
    const auto most =
        std::find_if(all.members.begin(), all.members.end(), [&](size_t d) { return static_cast<double>(bytes(devices[d])) == spread.most; });
    const auto text = [](double value) { return bytes_or_nothing(std::llround(value)); };
    table.add_row({name, text(spread.least), text(spread.median), text(spread.most), spread.least == spread.most ? "" : names[*most]});
  };
  for (const Category category : held_categories(devices)) {
    add(category_name(category), [c = static_cast<size_t>(category)](const DeviceFigures& d) { return d.pool.peak_by_category[c]; });
  }
  table.add_rule();
  add("peak", [](const DeviceFigures& d) { return d.pool.peak_bytes; });
  add("capacity", [](const DeviceFigures& d) { return d.pool.capacity_bytes; });
  add("outside the pool", [](const DeviceFigures& d) { return d.outside_bytes; });
  const auto met = std::count_if(devices.begin(), devices.end(), is_as_planned);
  table.set_hint(fmt::format("{} of {} devices took what was planned, to the byte.", met, devices.size()));
  return table.str(style);
}

}  // namespace

std::string describe_plan(const DeviceFigures& device) { return is_as_planned(device) ? "to the byte" : format_bytes(device.plan.peak_bytes); }

std::string phase_report(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables, const Style& style) {
  if (tables.empty() || tables.front().steps == 0) return {};
  const std::string title = fmt::format("Where the time went ({} steps after the first)", tables.front().steps);
  if (devices.size() <= kDevicesApart) return times_apart(devices, tables, title, style);
  std::vector<DeviceSet> sets = group_devices(devices.size(), [&](size_t a, size_t b) { return do_the_same(tables[a], tables[b]); });
  if (sets.size() > kSetsApart) sets = {all_devices(devices.size())};
  std::string text;
  for (const DeviceSet& set : sets) {
    const size_t d = set.first();
    if (!text.empty()) text += '\n';
    text += set.single() ? times_apart({devices[d]}, {tables[d]}, title, style) : times_of_set(set, devices, tables, title, style);
  }
  return text;
}

std::string memory_report(const std::vector<DeviceFigures>& devices, int64_t dataset_bytes, const Style& style, int processes) {
  std::vector<std::string> names;
  for (const DeviceFigures& device : devices) names.push_back(device.device);
  const std::vector<DeviceSet> sets = group_devices(devices.size(), [&](size_t a, size_t b) { return same_memory(devices[a], devices[b]); });
  const std::string text = sets.size() <= kMemorySetsApart ? memory_of_sets(sets, names, devices, style) : memory_spread(names, devices, style);
  int64_t outside = 0;
  for (const DeviceFigures& d : devices) outside += d.outside_bytes;
  const bool on_gpus = !devices.empty() && devices.front().device.find("cuda:") != std::string::npos;
  const std::string hint =
      on_gpus ? fmt::format(
                    "Categories are those at the moment of the peak. Outside the pools the GPUs have {} in use: CUDA's context, libraries (NCCL, "
                    "cuBLAS, cuDNN), other processes; logical devices of one GPU share it equally.",
                    format_bytes(outside))
              : fmt::format(
                    "Categories are those at the moment of the peak. Outside the pools {} {} ({}data set: {}; then loader, "
                    "libraries, code), measured as resident set less pools and divided equally among {}CPU devices.",
                    processes == 1 ? "this process holds" : fmt::format("{} processes hold", processes), format_bytes(outside),
                    processes == 1 ? "the " : "each has the ", format_bytes(dataset_bytes), processes == 1 ? "" : "each process's ");
  return text + style.dim(wrap(hint, style.width)) + "\n";
}

}  // namespace vitrine::tools
