// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/units.h"
#include "tools/program/render/report_tables.h"

namespace vitrine::tools {

namespace {

/// Whether schemes_table() shows the same figures for both.
bool same_row(const DeviceRecord& a, const DeviceRecord& b) {
  return a.samples_per_step == b.samples_per_step && a.pool.peak_bytes == b.pool.peak_bytes &&
         planned_peak(a) == planned_peak(b) &&
         a.bytes_at_peak(Category::activations) == b.bytes_at_peak(Category::activations);
}

/// A column: phases that serve one purpose.
struct PhaseGroup {
  const char* title;
  std::vector<Phase> phases;
  int spare = 0;  // as Table::Column::spare

  double seconds(const PhaseTable& table) const { return per_step(seconds_in(table, phases), table); }
};

/// "50.1 of 46.0 MiB".
std::string describe_need(const DeviceRecord& d) {
  return fmt::format("{} of {}", format_bytes(d.plan.peak_bytes), format_bytes(d.pool.capacity_bytes));
}

std::string describe_difference(const RunRecord& run) {
  if (!std::isfinite(run.gradient_difference)) return "overflow";
  const std::string difference = fmt::format("{:.1e}", run.gradient_difference);
  constexpr double kShownShare = 0.01;
  return run.vanished_gradients < kShownShare
             ? difference
             : fmt::format("{}, {} vanish", difference, percent(run.vanished_gradients));
}

/// How much rounding alone changes gradients in the precisions of these runs.
std::string rounding_hint(const std::vector<RunRecord>& runs) {
  std::string text =
      "Gradient difference: relative to one device's f32 gradient of the first step; rounding alone gives about 1e-6";
  const auto any = [&](DType dtype) {
    return std::ranges::any_of(runs, [=](const auto& r) { return r.precision.compute == dtype; });
  };
  constexpr double kBeyondRounding = 1e-5;
  if (std::ranges::any_of(runs, [](const auto& r) {
        return r.precision.compute == DType::f32 && r.gradient_difference > kBeyondRounding;
      }))
    text += " (1e-3 if it changes the sign of a ReLU's input)";
  if (any(DType::f16)) text += ", in fp16 1e-2";
  if (any(DType::bf16)) text += ", in bf16 5e-2";
  return text + ".";
}

}  // namespace

Table schemes_table(const ComparisonRecord& record) {
  using Align = Table::Align;
  const bool skips = std::ranges::any_of(record.runs, [](const RunRecord& r) { return r.steps.skipped() > 0; });
  Table table({{"mode", Align::left},
               {"device", Align::left},
               {skips ? "samples/s (skipped)" : "samples/s"},
               {"gradient difference"},
               {"samples/step", Align::right, 3},
               {"peak memory"},
               {"planned", Align::right, 1},
               {"activations", Align::right, 2}},
              "The same steps under each scheme");
  table.set_key_columns(2);
  const auto add_run = [&](const RunRecord& run, bool measured) {
    if (&run != &(record.refused.empty() ? record.runs : record.refused).front()) table.add_rule();
    const std::string rate =
        run.steps.skipped() > 0 ? fmt::format("{} ({})", run.rates.str(), run.steps.skipped()) : run.rates.str();
    const auto agree = [&](size_t a, size_t b) { return same_row(run.devices[a], run.devices[b]); };
    for (const DeviceSet& set : group_devices(run.devices.size(), agree)) {
      const DeviceRecord& d = run.devices[set.first()];
      const bool first = set.first() == 0;
      table.add_row({first ? run.name : "", set.name(names_of(run.devices)),
                     !measured ? d.fits() ? "" : "does not fit"
                     : first   ? rate
                               : "",
                     first && measured ? describe_difference(run) : "", format_count(d.samples_per_step),
                     measured ? format_bytes(d.pool.peak_bytes) : describe_need(d), measured ? planned_peak(d) : "",
                     format_bytes(d.bytes_at_peak(Category::activations))});
    }
  };
  for (const RunRecord& run : record.refused) add_run(run, false);
  for (const RunRecord& run : record.runs) add_run(run, true);
  table.set_hint(rounding_hint(record.runs));
  return table;
}

Table scheme_times_table(const std::vector<RunRecord>& runs) {
  std::vector<PhaseGroup> groups = {{"input", {Phase::data, Phase::stage, Phase::scatter, Phase::preprocess}, 1},
                                    {"replicate", {Phase::replicate, Phase::broadcast}, 2},
                                    {"forward", {Phase::forward}},
                                    {"loss", {Phase::gather, Phase::loss, Phase::scatter_grad}},
                                    {"backward", {Phase::backward}},
                                    {"recompute", {Phase::recompute}},
                                    {"reduce", {Phase::reduce, Phase::decide}},
                                    {"update", {Phase::optimizer, Phase::cast}},
                                    {"wait", {Phase::wait}}};
  const bool recomputes = std::ranges::any_of(runs, [](const RunRecord& run) {
    return std::ranges::any_of(run.devices,
                               [](const DeviceRecord& d) { return phase_row(d.phases, Phase::recompute).calls > 0; });
  });
  if (!recomputes)
    std::erase_if(groups, [](const PhaseGroup& group) { return group.phases.front() == Phase::recompute; });
  std::vector<Table::Column> columns = {{"mode", Table::Align::left}, {"device", Table::Align::left}};
  for (const PhaseGroup& group : groups) columns.push_back({group.title, Table::Align::right, group.spare});
  columns.insert(columns.end(), {{"step"}, {"waits most for", Table::Align::left, 3}});
  Table table(columns, "Where a step's time went (ms)");
  table.set_key_columns(2);
  for (const RunRecord& run : runs) {
    if (&run != &runs.front()) table.add_rule();
    DeviceSet timed;
    for (size_t d = 0; d < run.devices.size(); ++d) {
      if (run.devices[d].phases.steps > 0) timed.members.push_back(d);
    }
    std::string mode = run.name;
    // pick: the value of one device, or the one of several that stands for them
    const auto add_row = [&](const std::string& device, const std::string& waits_for, const auto& pick) {
      std::vector<std::string> cells = {std::exchange(mode, ""), device};
      for (const PhaseGroup& group : groups)
        cells.push_back(format_ms(pick([&](size_t d) { return group.seconds(run.devices[d].phases); })));
      cells.push_back(format_ms(
          pick([&](size_t d) { return per_step(run.devices[d].phases.wall_seconds, run.devices[d].phases); })));
      cells.push_back(waits_for);
      table.add_row(cells);
    };
    if (timed.members.size() > kDevicesApart) {
      add_row(fmt::format("{} devices: min", timed.members.size()), "",
              [&](const auto& value) { return spread_of(timed, value).least; });
      add_row("median", "", [&](const auto& value) { return spread_of(timed, value).median; });
      add_row("max", "", [&](const auto& value) { return spread_of(timed, value).most; });
      continue;
    }
    for (const size_t d : timed.members) {
      const std::vector<WaitRow>& waits = run.devices[d].phases.waits;
      add_row(run.devices[d].device, waits.empty() ? "" : waits.front().cause,
              [&](const auto& value) { return value(d); });
    }
  }
  table.set_hint(
      "input: data, stage, scatter, preprocess. replicate: with broadcast. loss: with gather and scatter_grad. A "
      "device's row adds up to its step.");
  return table;
}

}  // namespace vitrine::tools
