// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/confusion.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/text.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {
namespace {

constexpr int64_t kMostInTable = 20;
constexpr size_t kConfusionsShown = 20;
constexpr size_t kNameWidth = 12;

std::string name_of(int64_t label, const std::vector<std::string>& names) {
  return label < static_cast<int64_t>(names.size()) ? excerpt(names[static_cast<size_t>(label)])
                                                    : std::to_string(label);
}

}  // namespace

void ConfusionMatrix::add(std::span<const int32_t> labels, std::span<const float> logits) {
  const auto classes = static_cast<size_t>(classes_);
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * classes, classes);
    if (labels[i] < 0 || std::ranges::any_of(row, [](float x) { return std::isnan(x); })) continue;
    const auto predicted = static_cast<size_t>(std::ranges::max_element(row) - row.begin());
    ++counts_[static_cast<size_t>(labels[i]) * classes + predicted];
  }
}

void ConfusionMatrix::sum_over_processes(ProcessGroup& process_group) {
  const std::vector<double> sums = process_group.sum("the confusion matrix", {counts_.begin(), counts_.end()});
  std::ranges::transform(sums, counts_.begin(), [](double sum) { return static_cast<int64_t>(sum); });
}

int64_t ConfusionMatrix::total(int64_t actual) const {
  int64_t sum = 0;
  for (int64_t predicted = 0; predicted < classes_; ++predicted) sum += count(actual, predicted);
  return sum;
}

std::string ConfusionMatrix::report(const std::vector<std::string>& names, const Style& style) const {
  if (classes_ <= kMostInTable) {
    std::vector<Table::Column> columns{{"class", Table::Align::left}};
    for (int64_t c = 0; c < classes_; ++c) columns.push_back({name_of(c, names).substr(0, kNameWidth)});
    Table table(columns, "Confusion matrix: a row for each class, a column for each prediction");
    for (int64_t actual = 0; actual < classes_; ++actual) {
      std::vector<std::string> cells{name_of(actual, names)};
      for (int64_t predicted = 0; predicted < classes_; ++predicted)
        cells.push_back(format_count(count(actual, predicted)));
      table.add_row(cells);
    }
    return table.str(style);
  }
  struct Confusion {
    int64_t actual, predicted, count;
  };
  std::vector<Confusion> confusions;
  for (int64_t actual = 0; actual < classes_; ++actual) {
    for (int64_t predicted = 0; predicted < classes_; ++predicted) {
      if (actual != predicted && count(actual, predicted) > 0)
        confusions.push_back({actual, predicted, count(actual, predicted)});
    }
  }
  std::ranges::stable_sort(confusions, [](const Confusion& a, const Confusion& b) { return a.count > b.count; });
  confusions.resize(std::min(confusions.size(), kConfusionsShown));
  Table table({{"class", Table::Align::left}, {"predicted as", Table::Align::left}, {"samples"}, {"of the class"}},
              fmt::format("The most frequent confusions of {} classes", classes_));
  for (const Confusion& c : confusions) {
    table.add_row({name_of(c.actual, names), name_of(c.predicted, names), format_count(c.count),
                   format_share(static_cast<double>(c.count) / static_cast<double>(total(c.actual)))});
  }
  return table.str(style);
}

nlohmann::ordered_json ConfusionMatrix::json() const {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (int64_t actual = 0; actual < classes_; ++actual) {
    const auto begin = counts_.begin() + actual * classes_;
    rows.push_back(std::vector<int64_t>(begin, begin + classes_));
  }
  return rows;
}

}  // namespace vitrine::tools
