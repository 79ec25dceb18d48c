// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "runtime/units.h"
#include "tools/program/render/report_tables.h"

namespace vitrine::tools {
namespace {

// More sets of devices than this are shown as one.
constexpr size_t kSetsApart = 3;
// Causes of waiting below this share of every step have no row, and only the longest ones have.
constexpr double kWaitShareShown = 0.001;
constexpr size_t kWaitCausesShown = 6;
// As a multiple of what its collectives take: a longer reduce has waited for cores.
constexpr double kDisturbed = 2;

/// The causes of waiting that have a row, longest first.
std::vector<std::string> wait_causes(const std::vector<const DeviceRecord*>& devices) {
  std::map<std::string, double> seconds;
  for (const DeviceRecord* d : devices) {
    for (const WaitRow& wait : d->phases.waits) {
      if (wait.share >= kWaitShareShown) seconds[wait.cause] += wait.seconds;
    }
  }
  std::vector<std::string> causes;
  for (const auto& [cause, total] : seconds) causes.push_back(cause);
  std::ranges::stable_sort(causes, [&](const std::string& a, const std::string& b) { return seconds[a] > seconds[b]; });
  causes.resize(std::min(causes.size(), kWaitCausesShown));
  return causes;
}

/// A row, and its figures for a device.
struct TimeRow {
  std::string name;
  std::function<PhaseRow(const PhaseTable&)> of;
};

/// Every phase of any device, waits with their causes, and last the step.
std::vector<TimeRow> time_rows(const std::vector<const DeviceRecord*>& devices) {
  std::vector<TimeRow> rows;
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    const auto has = [&](const DeviceRecord* d) {
      return std::ranges::any_of(d->phases.rows, [&](const PhaseRow& row) { return row.phase == phase; });
    };
    if (std::ranges::none_of(devices, has)) continue;
    rows.push_back({phase_name(phase), [phase](const PhaseTable& t) { return phase_row(t, phase); }});
    if (phase != Phase::wait) continue;
    for (const std::string& cause : wait_causes(devices)) {
      rows.push_back({"  for " + cause, [cause](const PhaseTable& t) {
                        const WaitRow wait = wait_row(t, cause);
                        return PhaseRow{Phase::wait, t.ordinal, wait.seconds, wait.share};
                      }});
    }
  }
  rows.push_back({"step", [](const PhaseTable& t) {
                    return PhaseRow{Phase::step, t.ordinal, t.wall_seconds, t.named_share};
                  }});
  return rows;
}

bool reduces_on_cpu(const DeviceRecord* d) {
  return d->device.starts_with("cpu:") && phase_row(d->phases, Phase::reduce).calls > 0 &&
         !d->communication.rows.empty();
}

/// Four columns for each device.
Table times_apart(const std::vector<const DeviceRecord*>& devices, const std::string& title) {
  std::vector<Table::Column> columns = {{"ms per step", Table::Align::left}};
  for (const DeviceRecord* d : devices) {
    columns.push_back({d->device});
    int spare = 0;
    for (const char* figure : {"share", "hidden", "moved"}) columns.push_back({figure, Table::Align::right, ++spare});
  }
  Table table(columns, title);
  const std::vector<TimeRow> rows = time_rows(devices);
  for (const TimeRow& row : rows) {
    if (&row == &rows.back()) table.add_rule_above_total();
    std::vector<std::string> cells = {row.name};
    for (const DeviceRecord* d : devices) {
      const PhaseTable& t = d->phases;
      const PhaseRow figures = row.of(t);
      cells.insert(cells.end(),
                   {format_ms(per_step(figures.seconds, t)), format_share(figures.share),
                    format_ms(per_step(figures.hidden_seconds, t)), bytes_or_nothing(moved_per_step(figures, t))});
    }
    table.add_row(cells);
  }
  std::string hint =
      "Each device's column adds up to its step. hidden: time that ran beside other work and cost nothing.";
  if (std::ranges::any_of(devices, reduces_on_cpu))
    hint += " reduce: until the threads of all CPU devices have run; Communication has the collectives alone.";
  table.set_hint(hint);
  return table;
}

/// One table for devices that run the same phases.
Table times_of_set(const DeviceSet& set, const std::vector<DeviceRecord>& devices, const std::string& title) {
  const std::vector<std::string> names = names_of(devices);
  const auto right = Table::Align::right;
  Table table({{"ms per step", Table::Align::left},
               {"min", right, 3},
               {"median"},
               {"max"},
               {"max at"},
               {"share", right, 1},
               {"hidden", right, 2},
               {"moved", right, 4}},
              fmt::format("{}: {}", title, set.name(names)));
  std::vector<const DeviceRecord*> members;
  for (const size_t member : set.members) members.push_back(&devices[member]);
  const std::vector<TimeRow> rows = time_rows(members);
  for (const TimeRow& row : rows) {
    if (&row == &rows.back()) table.add_rule_above_total();
    const auto spread = [&](const auto& value) {
      return spread_of(set, [&](size_t d) { return value(row.of(devices[d].phases), devices[d].phases); });
    };
    const Spread ms = spread([](const PhaseRow& r, const PhaseTable& t) { return per_step(r.seconds, t); });
    table.add_row(
        {row.name, format_ms(ms.least), format_ms(ms.median), format_ms(ms.most),
         ms.most > 0 ? names[ms.most_at] : std::string(),
         format_share(spread([](const PhaseRow& r, const PhaseTable&) { return r.share; }).median),
         format_ms(spread([](const PhaseRow& r, const PhaseTable& t) { return per_step(r.hidden_seconds, t); }).median),
         bytes_or_nothing(std::llround(spread([](const PhaseRow& r, const PhaseTable& t) {
                                         return static_cast<double>(moved_per_step(r, t));
                                       }).median))});
  }
  table.set_hint(
      "Columns after 'max at' are medians over the devices. hidden: time that ran beside other work and cost nothing.");
  return table;
}

/// Whether two devices run the same phases. Waits do not count: they depend on which device is late.
bool same_phases(const PhaseTable& a, const PhaseTable& b) {
  const auto phases = [](const PhaseTable& table) {
    std::vector<Phase> all;
    for (const PhaseRow& row : table.rows) {
      if (row.phase != Phase::wait && row.phase != Phase::data) all.push_back(row.phase);
    }
    std::ranges::sort(all);
    return all;
  };
  return phases(a) == phases(b);
}

}  // namespace

std::vector<Table> time_tables(const std::vector<DeviceRecord>& devices, size_t apart) {
  if (measured_steps(devices) == 0) return {};
  const std::string title =
      fmt::format("Where the time went ({} after the first)", counted(measured_steps(devices), "step"));
  if (devices.size() <= apart) {
    std::vector<const DeviceRecord*> all;
    for (const DeviceRecord& d : devices) all.push_back(&d);
    return {times_apart(all, title)};
  }
  std::vector<DeviceSet> sets = group_devices(
      devices.size(), [&](size_t a, size_t b) { return same_phases(devices[a].phases, devices[b].phases); });
  if (sets.size() > kSetsApart) sets = {all_devices(devices.size())};
  std::vector<Table> tables;
  for (const DeviceSet& set : sets) {
    tables.push_back(set.single() ? times_apart({&devices[set.first()]}, title) : times_of_set(set, devices, title));
  }
  return tables;
}

std::optional<Table> communication_table(const std::vector<DeviceRecord>& devices) {
  const DeviceRecord* slowest = least_late(devices);
  if (slowest == nullptr) return std::nullopt;
  const CommunicationTable& communication = slowest->communication;
  const auto right = Table::Align::right;
  Table table({{"ms per step", Table::Align::left},
               {"size", right, 2},
               {"time"},
               {"hidden"},
               {"exposed"},
               {"late peers", right, 1},
               {"exposed wait", right, 4},
               {"algbw GB/s", right, 3},
               {"busbw GB/s", right, 1}},
              fmt::format("Communication (the slowest device, {})", slowest->device));
  const auto add = [&](const std::string& name, const CommunicationRow& row) {
    const auto bandwidth = [](double value) { return value > 0 ? fmt::format("{:.2f}", value * 1e-9) : "-"; };
    const auto ms = [&](double seconds) { return format_ms(per_step(seconds, communication)); };
    table.add_row({name, format_bytes(per_step(row.buffer_bytes, communication)), ms(row.seconds()),
                   format_share(row.hidden_share()), ms(row.exposed_seconds), ms(row.late_seconds()),
                   ms(row.late_exposed_seconds), bandwidth(row.algbw()), bandwidth(row.busbw())});
  };
  for (const CommunicationRow& row : communication.rows) add(row.name(), row);
  table.add_rule_above_total();
  add("all", communication.total());
  std::string hint =
      "time: from the last device's arrival until all are done. hidden: beside compute. exposed: the device had "
      "nothing else to do. late peers: the wait for them before that. exposed wait: its exposed part. algbw GB/s: "
      "size / time. busbw GB/s: what one link carries, as in nccl-tests.";
  double collectives = 0, whole = 0;
  for (const CommunicationRow& row : communication.rows) collectives += row.phase == Phase::reduce ? row.seconds() : 0;
  for (const DeviceRecord& d : devices) {
    const PhaseRow reduce = phase_row(d.phases, Phase::reduce);
    if (reduces_on_cpu(&d)) whole = std::max(whole, per_step(reduce.seconds + reduce.hidden_seconds, d.phases));
  }
  if (whole > kDisturbed * per_step(collectives, communication)) {
    hint += fmt::format(
        " Other work on the machine shows in reduce: {} a step, of which the collectives take {} and threads wait for "
        "a "
        "core in the rest.",
        short_seconds(whole), short_seconds(per_step(collectives, communication)));
  }
  table.set_hint(hint);
  return table;
}

std::optional<Table> epochs_table(const RunRecord& run) {
  if (run.epochs.empty()) return std::nullopt;
  Table table({{"", Table::Align::left},
               {"after step"},
               {"train loss"},
               {"test loss"},
               {"test accuracy"},
               {run.tokens.per_sample > 0 ? "tokens/s" : "samples/s"}});
  const auto cell = [](std::optional<double> value) {
    return value && std::isfinite(*value) ? fmt::format("{:.4f}", *value) : "–";
  };
  for (const EpochRecord& e : run.epochs) {
    table.add_row(
        {fmt::format("epoch {}", e.epoch), fmt::format("{}", e.last_step), cell(e.totals.mean_loss()),
         cell(e.test_loss), cell(e.test_accuracy),
         format_rate(e.samples_per_second() * static_cast<double>(std::max<int64_t>(1, run.tokens.per_sample)))});
  }
  return table;
}

}  // namespace vitrine::tools
