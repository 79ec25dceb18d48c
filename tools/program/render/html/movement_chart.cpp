// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "tools/program/render/html/charts.h"
#include "tools/program/text/scale.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools::html {

namespace {

// With more devices, those that take the same part share a column.
constexpr size_t kColumnsApart = 8;

/// From where to where a phase moves bytes.
enum class Way {
  host_to_devices,
  first_to_others,
  output_to_others,
  others_to_output,
  others_to_first,
  among_all,
  none
};

/// A row of the chart, and what its arrows carry.
constexpr struct {
  Phase phase;
  Way way = Way::none;
  const char* cargo = "";
} kRows[] = {{Phase::stage, Way::host_to_devices, "samples, from the host's memory"},
             {Phase::scatter, Way::first_to_others, "each device's samples"},
             {Phase::replicate, Way::first_to_others, "parameters"},
             {Phase::forward},
             {Phase::gather, Way::others_to_output, "outputs of all devices, for the loss"},
             {Phase::loss},
             {Phase::scatter_grad, Way::output_to_others, "gradients of the outputs"},
             {Phase::backward},
             {Phase::reduce, Way::among_all, "sums of gradients"},
             {Phase::optimizer},
             {Phase::broadcast, Way::first_to_others, "parameters"}};

/// The columns of devices; the host's comes before them.
struct Columns {
  std::vector<DeviceSet> sets;

  std::vector<size_t> without(size_t device) const {
    std::vector<size_t> columns;
    for (size_t s = 0; s < sets.size(); ++s) {
      if (sets[s].first() != device) columns.push_back(s + 1);
    }
    return columns;
  }
  size_t of(size_t device) const {
    for (size_t s = 0; s < sets.size(); ++s) {
      if (sets[s].first() == device) return s + 1;
    }
    return 1;
  }
  std::vector<size_t> all() const {
    std::vector<size_t> columns(sets.size());
    std::iota(columns.begin(), columns.end(), size_t{1});
    return columns;
  }
  /// A device of the column; null for the host.
  const DeviceSet* devices(size_t column) const { return column == 0 ? nullptr : &sets[column - 1]; }
};

Columns columns_of(const RunRecord& run) {
  const auto special = [&](size_t d) { return d == 0 || static_cast<int>(d) == run.scheme.output_device; };
  const auto agree = [&](size_t a, size_t b) {
    if (a == b) return true;
    if (run.devices.size() <= kColumnsApart || special(a) || special(b)) return false;
    return run.devices[a].samples_per_step == run.devices[b].samples_per_step;
  };
  return {group_devices(run.devices.size(), agree)};
}

/// A row of arrows; null if nothing moves.
Json arrows_json(const RunRecord& run, const Columns& columns, Phase phase, Way way, const char* cargo) {
  const auto output = static_cast<size_t>(run.scheme.output_device);
  std::vector<size_t> sources, sinks;
  if (way == Way::host_to_devices) {
    sources = {0};
    sinks = columns.without(run.devices.size());
  } else if (way == Way::among_all) {
    sources = sinks = columns.all();
  } else {
    const size_t center = way == Way::first_to_others || way == Way::others_to_first ? 0 : output;
    const bool inwards = way == Way::others_to_first || way == Way::others_to_output;
    sources = {columns.of(center)};
    sinks = columns.without(center);
    if (inwards) std::swap(sources, sinks);
  }
  // The bytes stand where each device's part is: at the other end from a single source or sink, unless only the sink
  // counts them.
  const auto bytes_at = [&](size_t column) {
    const DeviceSet* const devices = columns.devices(column);
    return devices == nullptr ? int64_t{0} : moved_bytes(run, devices->first(), phase);
  };
  const auto idle = [&](size_t column) { return bytes_at(column) == 0; };
  const bool at_sink_only = way == Way::others_to_output;
  std::vector<size_t>& marked = way == Way::others_to_first ? sources : sinks;
  if (!at_sink_only) std::erase_if(marked, idle);
  Json marks = Json::array();
  for (const size_t column : marked) {
    if (bytes_at(column) > 0) marks.push_back({{"column", column}, {"text", short_bytes(bytes_at(column))}});
  }
  if (marks.empty()) return {};
  return {{"name", phase_name(phase)},
          {"paint", phase_paint(phase)},
          {"sources", sources},
          {"sinks", sinks},
          {"marks", marks},
          {"title", fmt::format("{}: {}", phase_name(phase), cargo)}};
}

/// A row of boxes: the devices that work, with their time; null if none does.
Json boxes_json(const RunRecord& run, const Columns& columns, Phase phase) {
  Json boxes = Json::array();
  const char* name = phase == Phase::optimizer ? "update" : phase_name(phase);
  for (size_t s = 0; s < columns.sets.size(); ++s) {
    const DeviceRecord& device = run.devices[columns.sets[s].first()];
    const PhaseRow work = phase_row(device.phases, phase);
    const double seconds = per_step(work.seconds, device.phases);
    const bool planned = device.phases.wall_seconds == 0 && work.calls > 0;
    // Devices that send their outputs to another only clear their totals in this phase.
    const bool elsewhere = phase == Phase::loss && run.scheme.loss_at == LossAt::gathered &&
                           s + 1 != columns.of(static_cast<size_t>(run.scheme.output_device));
    if ((!planned && !(seconds > 0)) || elsewhere) continue;
    const std::string time = planned ? std::string() : short_seconds(seconds);
    boxes.push_back({{"column", s + 1},
                     {"text", time},
                     {"title", fmt::format("{} on {}{}{}", name, device.device, planned ? "" : ": ", time)}});
  }
  return boxes.empty() ? Json() : Json{{"name", name}, {"paint", phase_paint(phase)}, {"boxes", boxes}};
}

}  // namespace

Json movement_chart(const RunRecord& run) {
  if (run.devices.size() < 2 || measured_steps(run.devices) == 0) return {};
  const Columns columns = columns_of(run);
  const std::vector<std::string> names = names_of(run.devices);
  Json heads = Json::array({{{"name", "host"}, {"note", ""}}});
  for (const DeviceSet& set : columns.sets) {
    heads.push_back({{"name", set.name(names)},
                     {"note", fmt::format("{}{}", counted(run.devices[set.first()].samples_per_step, "sample"),
                                          set.single() ? "" : " each")}});
  }
  Json rows = Json::array();
  for (auto [phase, way, cargo] : kRows) {
    if (phase == Phase::reduce && run.scheme.reduce == Reduce::gpu0) way = Way::others_to_first;
    if (phase == Phase::broadcast && run.scheme.shard != Sharding::none) way = Way::among_all;  // an all-gather
    const Json row = way == Way::none ? boxes_json(run, columns, phase) : arrows_json(run, columns, phase, way, cargo);
    if (!row.is_null()) rows.push_back(row);
  }
  return rows.empty() ? Json()
                      : Json{{"kind", "movement"},
                             {"label", "What moves where in a step, phase by phase"},
                             {"columns", heads},
                             {"rows", rows}};
}

}  // namespace vitrine::tools::html
