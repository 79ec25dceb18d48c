// SPDX-License-Identifier: Apache-2.0
#include "tools/report.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "runtime/units.h"

namespace vitrine::tools {

namespace {

// More devices than this would not fit beside each other; they get tables of their own.
constexpr size_t kPhaseDevicesAcross = 3, kMemoryDevicesAcross = 5;

/// Devices in each of the tables when at most `limit` go beside each other: as equal as can be.
size_t devices_across(size_t devices, size_t limit) {
  const size_t tables = (devices + limit - 1) / limit;
  return (devices + tables - 1) / tables;
}

std::string bytes_or_nothing(int64_t bytes) { return bytes == 0 ? std::string{} : format_bytes(bytes); }

const PhaseRow* find_row(const PhaseTable& table, Phase phase) {
  const auto found = std::find_if(table.rows.begin(), table.rows.end(), [&](const PhaseRow& row) { return row.phase == phase; });
  return found == table.rows.end() ? nullptr : &*found;
}

// Waits that never took this share of a step are told together.
constexpr double kWaitShareTold = 0.001;

/// The causes of waiting of all tables that are worth a row, longest first.
std::vector<std::string> wait_causes(std::span<const PhaseTable> tables) {
  std::map<std::string, double> seconds;
  for (const PhaseTable& table : tables) {
    for (const WaitRow& wait : table.waits) {
      if (wait.share >= kWaitShareTold) seconds[wait.cause] += wait.seconds;
    }
  }
  std::vector<std::string> causes;
  for (const auto& [cause, total] : seconds) causes.push_back(cause);
  std::stable_sort(causes.begin(), causes.end(), [&](const std::string& a, const std::string& b) { return seconds[a] > seconds[b]; });
  return causes;
}

std::string phase_block(std::span<const std::string> devices, std::span<const PhaseTable> tables, bool last, const Style& style) {
  std::vector<Table::Column> columns = {{"ms per step", Table::Align::left}};
  for (const std::string& device : devices) {
    columns.push_back({device});
    columns.push_back({"share"});
    columns.push_back({"hidden"});
    columns.push_back({"moved"});
  }
  Table table(columns, fmt::format("Where the time went ({} steps after the first)", tables.front().steps));
  const auto per_step = [](double seconds, const PhaseTable& t) { return format_ms(seconds / static_cast<double>(t.steps)); };
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    std::vector<std::string> cells = {phase_name(phase)};
    bool anywhere = false;
    for (const PhaseTable& t : tables) {
      const PhaseRow* row = find_row(t, phase);
      anywhere = anywhere || row != nullptr;
      if (row == nullptr) {
        cells.insert(cells.end(), 4, "");
        continue;
      }
      cells.insert(cells.end(),
                   {per_step(row->seconds, t), format_share(row->share), per_step(row->hidden_seconds, t), bytes_or_nothing(row->bytes / t.steps)});
    }
    if (!anywhere) continue;
    table.add_row(cells);
    if (phase != Phase::wait) continue;
    for (const std::string& cause : wait_causes(tables)) {
      std::vector<std::string> parts = {"  for " + cause};
      for (const PhaseTable& t : tables) {
        const auto wait = std::find_if(t.waits.begin(), t.waits.end(), [&](const WaitRow& row) { return row.cause == cause; });
        const bool here = wait != t.waits.end();
        parts.insert(parts.end(), {here ? per_step(wait->seconds, t) : "", here ? format_share(wait->share) : "", "", ""});
      }
      table.add_row(parts);
    }
  }
  table.add_rule();
  std::vector<std::string> sum = {"step"};
  for (const PhaseTable& t : tables) sum.insert(sum.end(), {per_step(t.wall_seconds, t), format_share(t.named_share), "", ""});
  table.add_row(sum);
  if (last) table.set_hint("Each device's column adds up to its step. 'hidden' ran beside other work and cost no time; 'wait' says what for.");
  return table.str(style);
}

/// Each device has two columns: what was measured, and what was planned.
std::string memory_block(std::span<const DeviceFigures> devices, const Style& style) {
  std::vector<Table::Column> columns = {{"at the peak", Table::Align::left}};
  for (const DeviceFigures& device : devices) {
    columns.push_back({device.device});
    columns.push_back({"planned"});
  }
  Table table(columns, "Where the memory went");
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
    const auto is_nothing = [&](const DeviceFigures& d) { return d.pool.peak_by_category[c] == 0 && d.plan.peak_by_category[c] == 0; };
    if (std::all_of(devices.begin(), devices.end(), is_nothing)) continue;
    std::vector<std::string> cells = {category_name(static_cast<Category>(c))};
    for (const DeviceFigures& d : devices)
      cells.insert(cells.end(), {bytes_or_nothing(d.pool.peak_by_category[c]), bytes_or_nothing(d.plan.peak_by_category[c])});
    table.add_row(cells);
  }
  table.add_rule();
  const auto row = [&](const char* name, const auto& measured, const auto& planned) {
    std::vector<std::string> cells = {name};
    for (const DeviceFigures& d : devices) cells.insert(cells.end(), {measured(d), planned(d)});
    table.add_row(cells);
  };
  const auto nothing = [](const DeviceFigures&) { return std::string(); };
  const auto moment = [](Phase phase, const std::string& layer) {
    return layer.empty() ? std::string(phase_name(phase)) : fmt::format("{} {}", phase_name(phase), layer);
  };
  row(
      "peak", [](const DeviceFigures& d) { return format_bytes(d.pool.peak_bytes); }, describe_plan);
  row(
      "reached in", [&](const DeviceFigures& d) { return moment(d.pool.peak_phase, d.pool.peak_layer); }, nothing);
  row(
      "capacity", [](const DeviceFigures& d) { return format_bytes(d.pool.capacity_bytes); }, nothing);
  row(
      "outside the pool", [](const DeviceFigures& d) { return format_bytes(d.outside_bytes); }, nothing);
  return table.str(style);
}

}  // namespace

std::string describe_plan(const DeviceFigures& device) {
  const bool met = device.plan.peak_bytes == device.pool.peak_bytes && device.plan.peak_by_category == device.pool.peak_by_category;
  return met ? "to the byte" : format_bytes(device.plan.peak_bytes);
}

std::string phase_report(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables, const Style& style) {
  if (tables.empty() || tables.front().steps == 0) return {};
  std::string text;
  const size_t across = devices_across(devices.size(), kPhaseDevicesAcross);
  for (size_t begin = 0; begin < devices.size(); begin += across) {
    const size_t count = std::min(across, devices.size() - begin);
    const bool last = begin + count == devices.size();
    text += phase_block(std::span(devices).subspan(begin, count), std::span(tables).subspan(begin, count), last, style) + (last ? "" : "\n");
  }
  return text;
}

std::string memory_report(const std::vector<DeviceFigures>& devices, int64_t dataset_bytes, const Style& style, int processes) {
  std::string text;
  int64_t outside = 0;
  const size_t across = devices_across(devices.size(), kMemoryDevicesAcross);
  for (size_t begin = 0; begin < devices.size(); begin += across) {
    text += memory_block(std::span(devices).subspan(begin, std::min(across, devices.size() - begin)), style);
  }
  for (const DeviceFigures& d : devices) outside += d.outside_bytes;
  const bool on_gpus = !devices.empty() && devices.front().device.find("cuda:") != std::string::npos;
  const std::string hint =
      on_gpus ? fmt::format(
                    "Categories are those at the moment of the peak. Outside the pools the GPUs have {} in use: CUDA's context, libraries (NCCL, "
                    "cuBLAS,\n"
                    "cuDNN), other processes; logical devices of one GPU share it equally.",
                    format_bytes(outside))
              : fmt::format(
                    "Categories are those at the moment of the peak. Outside the pools {} {} ({}data set: {}; then loader, "
                    "libraries, code),\nmeasured as resident set less pools and divided equally among {}CPU devices.",
                    processes == 1 ? "this process holds" : fmt::format("{} processes hold", processes), format_bytes(outside),
                    processes == 1 ? "the " : "each has the ", format_bytes(dataset_bytes), processes == 1 ? "" : "each process's ");
  return text + style.dim(hint) + "\n";
}

}  // namespace vitrine::tools
