// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/ranges.h>

#include "runtime/units.h"
#include "tools/program/render/report_tables.h"

namespace vitrine::tools {

namespace {

using Align = Table::Align;

std::string accuracy_text(double accuracy) { return fmt::format("{:.4f}", accuracy); }

/// "0.8123", or over seeds "0.8123 (0.8101 to 0.8150)".
template <class Format>
std::string spread_text(const Spread& spread, const Format& format) {
  if (spread.count == 0) return "-";
  if (spread.count == 1) return format(spread.mean);
  return fmt::format("{} ({} to {})", format(spread.mean), format(spread.least), format(spread.most));
}

/// What stands in the place of an accuracy: the states of the runs that are not complete.
std::string accuracy_cell(const ConfigurationSummary& summary) {
  std::vector<std::string> texts;
  if (summary.accuracy.count > 0) texts.push_back(spread_text(summary.accuracy, accuracy_text));
  texts.insert(texts.end(), summary.unfinished.begin(), summary.unfinished.end());
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string time_cell(const ConfigurationSummary& summary) { return spread_text(summary.seconds, format_duration); }

}  // namespace

Table reproduction_table(const Record& record) {
  const std::vector<ConfigurationSummary>& all = record.summaries;
  const bool skips = std::any_of(all.begin(), all.end(),
                                 [](const ConfigurationSummary& summary) { return summary.skipped_steps > 0; });
  std::vector<Table::Column> columns = {
      {"run", Align::left}, {"time"}, {"accuracy"}, {"best (epoch)", Align::right, 2}, {"samples/s", Align::right, 1}};
  if (skips) columns.push_back({"skipped"});
  columns.insert(columns.end(), {{"device", Align::left}, {"peak memory"}, {"planned", Align::right, 3}});
  Table table(columns, "The runs");
  for (const ConfigurationSummary& summary : all) {
    if (&summary != &all.front()) table.add_rule();
    std::vector<std::string> cells = {
        summary.name, time_cell(summary), accuracy_cell(summary),
        summary.best ? fmt::format("{:.4f} ({})", *summary.best->test_accuracy, summary.best->epoch) : "-",
        summary.rates.rounds.empty() ? "-" : summary.rates.str()};
    if (skips) cells.push_back(format_count(summary.skipped_steps));
    if (!summary.shown) {
      table.add_row(cells);
      continue;
    }
    const RunRecord& shown = record.runs[*summary.shown];
    const std::vector<DeviceRecord>& devices = shown.devices;
    const bool measured = measured_steps(devices) > 0;
    const auto peak = [&](size_t d) {
      return measured ? format_bytes(devices[d].pool.peak_bytes) : std::string("not measured");
    };
    const auto planned = [&](size_t d) {
      return measured ? planned_peak(devices[d]) : format_bytes(devices[d].plan.peak_bytes);
    };
    const auto agree = [&](size_t a, size_t b) { return peak(a) == peak(b) && planned(a) == planned(b); };
    for (const DeviceSet& set : group_devices(devices.size(), agree)) {
      if (set.first() > 0) cells.assign(cells.size(), "");
      std::vector<std::string> row = cells;
      row.insert(row.end(), {set.name(names_of(devices)), peak(set.first()), planned(set.first())});
      table.add_row(row);
    }
  }
  std::string hint =
      "time: training, without evaluation. accuracy: of the test set after the last epoch. best: the highest accuracy "
      "after any epoch, and that epoch. samples/s: the median of the epochs, and half of the range between them. The "
      "runs follow one another: vitrine compare runs modes in turns, to compare their speeds.";
  if (record.seeds > 1)
    hint += " Over several seeds: the mean, and in parentheses the range; best is the highest of all seeds.";
  table.set_hint(hint);
  return table;
}

std::optional<Table> published_table(const Record& record) {
  if (!record.as_published) return std::nullopt;
  Table table({{"run", Align::left},
               {"published accuracy"},
               {"accuracy here"},
               {"difference"},
               {"published time"},
               {"time here"}},
              "Published figures (RTX 2060, whole minutes) and this reproduction");
  for (const ConfigurationSummary& summary : record.summaries) {
    const PublishedFigure* published = summary.published;
    const bool known = published != nullptr && published->accuracy.has_value();
    table.add_row({summary.name, known ? accuracy_text(*published->accuracy) : "-", accuracy_cell(summary),
                   known && summary.accuracy.count > 0
                       ? fmt::format("{:+.4f}", summary.accuracy.mean - *published->accuracy)
                       : "-",
                   published != nullptr && published->minutes ? fmt::format("{} min", *published->minutes) : "-",
                   time_cell(summary)});
  }
  table.set_hint("-: not published, or not measured yet.");
  return table;
}

}  // namespace vitrine::tools
