// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "tools/program/json_text.h"
#include "tools/program/tables.h"

namespace vitrine {

// How processes exchange their devices: as JSON, member by member.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DevicePlan, peak_bytes, peak_by_category, peak_phase, peak_layer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PoolStatistics, capacity_bytes, reserved_bytes, peak_bytes, peak_by_category, peak_phase, peak_layer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PhaseRow, phase, ordinal, seconds, share, bytes, calls, hidden_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WaitRow, cause, seconds, share)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PhaseTable, ordinal, steps, wall_seconds, rows, waits, named_share)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommunicationRow, phase, layer, calls, moved_bytes, buffer_bytes, hidden_seconds, exposed_seconds,
                                   late_hidden_seconds, late_exposed_seconds, bus_factor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommunicationTable, ordinal, steps, rows)

namespace tools {

// Results that an older version has written have no owners.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(DeviceRecord, device, samples_per_step, plan, pool, outside_bytes, outside_by_owner, phases,
                                                communication)

std::string devices_text(const std::vector<DeviceRecord>& devices) { return json_text(nlohmann::json(devices)); }

std::vector<DeviceRecord> parse_devices(const std::string& path, const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<std::vector<DeviceRecord>>();
  } catch (const nlohmann::json::exception& problem) {
    throw DataError(fmt::format("{}: it has no measurements of devices: {}", path, problem.what()));
  }
}

std::vector<DeviceRecord> gather_devices(const Processes& processes, std::vector<DeviceRecord> mine) {
  if (processes.count() == 1) return mine;
  for (DeviceRecord& d : mine) d.device = fmt::format("rank {} {}", processes.process_group()->rank(), d.device);
  const std::vector<std::string> parts = processes.process_group()->gather("measurements", devices_text(mine));
  if (parts.empty()) return mine;
  std::vector<DeviceRecord> all;
  for (const std::string& part : parts) {
    for (DeviceRecord& device : parse_devices("measurements", part)) all.push_back(std::move(device));
  }
  // The charts of this process's devices stay: rank 0 comes first.
  std::move(mine.begin(), mine.end(), all.begin());
  for (size_t d = 0; d < all.size(); ++d) all[d].phases.ordinal = all[d].communication.ordinal = static_cast<int>(d);
  return all;
}

std::vector<std::string> names_of(const std::vector<DeviceRecord>& devices) {
  std::vector<std::string> names;
  for (const DeviceRecord& d : devices) names.push_back(d.device);
  return names;
}

std::string place_name(Phase phase, const std::string& layer) {
  return layer.empty() ? phase_name(phase) : fmt::format("{} {}", phase_name(phase), layer);
}

PhaseRow phase_row(const PhaseTable& table, Phase phase) {
  const auto found = std::find_if(table.rows.begin(), table.rows.end(), [&](const PhaseRow& row) { return row.phase == phase; });
  return found == table.rows.end() ? PhaseRow{phase} : *found;
}

WaitRow wait_row(const PhaseTable& table, std::string_view cause) {
  const auto found = std::find_if(table.waits.begin(), table.waits.end(), [&](const WaitRow& row) { return row.cause == cause; });
  return found == table.waits.end() ? WaitRow{std::string(cause)} : *found;
}

const DeviceRecord* least_late(const std::vector<DeviceRecord>& devices) {
  std::vector<CommunicationTable> tables;
  for (const DeviceRecord& d : devices) tables.push_back(d.communication);
  if (tables.empty()) return nullptr;
  const DeviceRecord& device = devices[vitrine::least_late(tables)];
  return device.communication.rows.empty() || device.communication.steps == 0 ? nullptr : &device;
}

std::vector<int64_t> last_steps(const RunRecord& run) {
  std::vector<int64_t> steps;
  int64_t step = run.epochs.empty() ? 0 : run.first_step - run.epochs.front().steps_before;
  for (const EpochRecord& epoch : run.epochs) steps.push_back(step += (epoch.samples + run.batch_size - 1) / run.batch_size);
  return steps;
}

double per_step(double value, const PhaseTable& table) { return table.steps > 0 ? value / static_cast<double>(table.steps) : 0.0; }

double Rates::median() const {
  if (rounds.empty()) return 0;
  std::vector<double> sorted = rounds;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Rates::least() const { return rounds.empty() ? 0 : *std::min_element(rounds.begin(), rounds.end()); }
double Rates::most() const { return rounds.empty() ? 0 : *std::max_element(rounds.begin(), rounds.end()); }

std::string Rates::str() const {
  const std::string text = format_count(std::llround(median()));
  return rounds.size() < 2 || median() <= 0 ? text : fmt::format("{} ±{:.0f} %", text, (most() - least()) / 2 / median() * 100);
}

}  // namespace tools
}  // namespace vitrine
