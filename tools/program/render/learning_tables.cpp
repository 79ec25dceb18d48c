// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <fmt/format.h>

#include "tools/program/render/report_tables.h"

namespace vitrine::tools {

std::optional<Table> epochs_table(const RunRecord& run) {
  if (run.epochs.empty()) return std::nullopt;
  Table table(
      {{"", Table::Align::left}, {"after step"}, {"train loss"}, {"test loss"}, {"test accuracy"}, {"samples/s"}});
  const auto cell = [](std::optional<double> value) {
    return value && std::isfinite(*value) ? fmt::format("{:.4f}", *value) : "–";
  };
  for (const EpochRecord& e : run.epochs) {
    table.add_row({fmt::format("epoch {}", e.epoch), fmt::format("{}", e.last_step), cell(e.totals.mean_loss()),
                   cell(e.test_loss), cell(e.test_accuracy), format_rate(e.samples_per_second())});
  }
  return table;
}

}  // namespace vitrine::tools
