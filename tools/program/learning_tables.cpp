// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <fmt/format.h>

#include "tools/program/record_tables.h"

namespace vitrine::tools {

std::optional<Table> epochs_table(const RunRecord& run) {
  if (run.epochs.empty()) return std::nullopt;
  Table table({{"", Table::Align::left}, {"after step"}, {"train loss"}, {"test loss"}, {"test accuracy"}});
  const std::vector<int64_t> steps = last_steps(run);
  const auto cell = [](std::optional<double> value) { return value && std::isfinite(*value) ? fmt::format("{:.4f}", *value) : "–"; };
  for (size_t i = 0; i < run.epochs.size(); ++i) {
    const EpochRecord& e = run.epochs[i];
    table.add_row(
        {fmt::format("epoch {}", e.epoch), fmt::format("{}", steps[i]), cell(e.totals.mean_loss()), cell(e.test_loss), cell(e.test_accuracy)});
  }
  return table;
}

}  // namespace vitrine::tools
