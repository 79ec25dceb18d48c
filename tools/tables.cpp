// SPDX-License-Identifier: Apache-2.0
#include "tools/tables.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine::tools {

Style Style::of(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  return {isatty(descriptor) == 1 && (no_color == nullptr || *no_color == '\0')};
}

std::string Style::bold(const std::string& text) const { return colour ? "\033[1m" + text + "\033[0m" : text; }
std::string Style::dim(const std::string& text) const { return colour ? "\033[2m" + text + "\033[0m" : text; }

Table::Table(std::vector<Column> columns, std::string title) : title_(std::move(title)), columns_(std::move(columns)) {}

void Table::add_row(std::vector<std::string> cells) {
  VITRINE_ASSERT(cells.size() <= columns_.size(), "a row has more cells than the table has columns");
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

std::string Table::str(const Style& style) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = row.empty() ? width : std::max(width, row[c].size());
    widths.push_back(width);
  }
  const auto line = [&](const auto& cell) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) text += "  ";
      text += columns_[c].align == Align::left ? fmt::format("{:<{}}", cell(c), widths[c]) : fmt::format("{:>{}}", cell(c), widths[c]);
    }
    return text.erase(text.find_last_not_of(' ') + 1);
  };
  size_t total = 2 * (columns_.size() - 1);
  for (const size_t width : widths) total += width;

  std::string text;
  if (!title_.empty()) text += style.bold(title_) + "\n";
  text += style.bold(line([&](size_t c) { return columns_[c].title; })) + "\n" + std::string(total, '-') + "\n";
  for (const auto& row : rows_) text += (row.empty() ? std::string(total, '-') : line([&](size_t c) { return row[c]; })) + "\n";
  if (!hint_.empty()) text += style.dim(hint_) + "\n";
  return text;
}

std::string format_share(double share) { return share == 0.0 ? std::string{} : fmt::format("{:.1f} %", share * 100.0); }

std::string format_ms(double seconds) {
  const double ms = seconds * 1e3;
  if (ms == 0.0) return {};
  return ms >= 100.0  ? fmt::format("{:.0f}", ms)
         : ms >= 10.0 ? fmt::format("{:.1f}", ms)
         : ms >= 1.0  ? fmt::format("{:.2f}", ms)
                      : fmt::format("{:.3f}", ms);
}

std::string format_count(int64_t count) {
  std::string text = fmt::format("{}", count);
  const size_t first = text[0] == '-' ? 1 : 0;
  for (size_t end = text.size(); end > first + 3; end -= 3) text.insert(end - 3, 1, ',');
  return text;
}

}  // namespace vitrine::tools
