// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/tables.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/text.h"
#include "runtime/units.h"

namespace vitrine::tools {

namespace {

constexpr size_t kGap = 2;             // between columns
constexpr size_t kNarrowestText = 10;  // of a column that is wrapped
constexpr size_t kEnoughText = 24;     // to wrap a text beside the columns before it

size_t total_width(const std::vector<size_t>& columns, const std::vector<size_t>& widths) {
  size_t total = columns.empty() ? 0 : kGap * (columns.size() - 1);
  for (const size_t c : columns) total += widths[c];
  return total;
}

}  // namespace

Table::Table(std::vector<Column> columns, std::string title) : title_(std::move(title)), columns_(std::move(columns)) {}

void Table::add_row(std::vector<std::string> cells) {
  VITRINE_ASSERT(cells.size() <= columns_.size(), "a row has more cells than the table has columns");
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

void Table::add_rule_above_total() {
  add_rule();
  totals_.push_back(rows_.size());
}

std::vector<Table::Columns> Table::blocks(size_t width, std::vector<size_t>& widths) const {
  Columns keys(std::min(key_columns_, columns_.size()));
  std::iota(keys.begin(), keys.end(), size_t{0});
  // Columns that stay together.
  std::vector<Columns> groups;
  for (size_t c = keys.size(); c < columns_.size(); ++c) {
    if (groups.empty() || !columns_[c].joined) groups.emplace_back();
    groups.back().push_back(c);
  }
  if (groups.empty()) groups.emplace_back();
  // Narrows the widest text columns of a block until it fits, or no column can be narrowed.
  const auto narrow = [&](const Columns& block) {
    for (size_t total = total_width(block, widths); total > width; total = total_width(block, widths)) {
      const auto can_give = [&](size_t c) {
        return columns_[c].align == Align::left && widths[c] > kNarrowestText ? widths[c] - kNarrowestText : 0;
      };
      const size_t widest =
          *std::max_element(block.begin(), block.end(), [&](size_t a, size_t b) { return can_give(a) < can_give(b); });
      if (can_give(widest) == 0) return;
      widths[widest] -= std::min(can_give(widest), total - width);
    }
  };
  const auto with_keys = [&](const Columns& columns) {
    Columns block = keys;
    block.insert(block.end(), columns.begin(), columns.end());
    return block;
  };
  std::vector<Columns> apart;
  for (const Columns& group : groups) {
    narrow(with_keys(group));
    if (total_width(with_keys(group), widths) <= width) {
      apart.push_back(group);
      continue;
    }
    for (const size_t c : group) apart.push_back({c});
  }
  std::vector<Columns> blocks;
  for (const Columns& group : apart) {
    if (blocks.empty()) {
      blocks.push_back(with_keys(group));
      continue;
    }
    // A text at the end of a row is wrapped beside the numbers where there is room.
    const size_t used = total_width(blocks.back(), widths) + kGap;
    if (group.size() == 1 && columns_[group[0]].align == Align::left && used + kEnoughText <= width) {
      widths[group[0]] = std::min(widths[group[0]], width - used);
    }
    if (used + total_width(group, widths) <= width) {
      blocks.back().insert(blocks.back().end(), group.begin(), group.end());
    } else {
      blocks.push_back(with_keys(group));
    }
  }
  return blocks;
}

std::string Table::block(const Columns& columns, const std::vector<size_t>& widths, const Style& style) const {
  const auto row_text = [&](const auto& cell) {
    std::vector<std::vector<std::string>> cells;
    size_t height = 1;
    for (const size_t c : columns) {
      cells.push_back(split_text(wrap(cell(c), static_cast<int>(widths[c])), '\n'));
      height = std::max(height, cells.back().size());
    }
    std::string text;
    for (size_t line = 0; line < height; ++line) {
      std::string part;
      for (size_t i = 0; i < columns.size(); ++i) {
        const std::string content = line < cells[i].size() ? cells[i][line] : std::string();
        if (i > 0) part.append(kGap, ' ');
        part += columns_[columns[i]].align == Align::left ? fmt::format("{:<{}}", content, widths[columns[i]])
                                                          : fmt::format("{:>{}}", content, widths[columns[i]]);
      }
      if (line > 0) text += '\n';
      text += part.erase(part.find_last_not_of(' ') + 1);
    }
    return text;
  };
  const std::string rule(total_width(columns, widths), '-');
  std::string text = style.bold(row_text([&](size_t c) { return columns_[c].title; })) + "\n" + rule + "\n";
  for (const auto& row : rows_) text += (row.empty() ? rule : row_text([&](size_t c) { return row[c]; })) + "\n";
  return text;
}

std::string Table::str(const Style& style) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = row.empty() ? width : std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string text;
  if (!title_.empty()) text += style.bold(wrap(title_, style.width)) + "\n";
  bool first = true;
  for (const Columns& columns : blocks(static_cast<size_t>(style.width), widths)) {
    if (!first) text += '\n';
    text += block(columns, widths, style);
    first = false;
  }
  if (!hint_.empty()) text += style.dim(wrap(hint_, style.width)) + "\n";
  return text;
}

nlohmann::ordered_json Table::json() const {
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson columns = OrderedJson::array(), rows = OrderedJson::array();
  for (const Column& column : columns_)
    columns.push_back({{"title", column.title}, {"left", column.align == Align::left}});
  bool rule = false;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const bool total = std::find(totals_.begin(), totals_.end(), r) != totals_.end();
    if (!rows_[r].empty()) rows.push_back({{"cells", rows_[r]}, {"rule", rule}, {"total", total}});
    rule = rows_[r].empty();
  }
  return {{"kind", "table"}, {"title", title_}, {"columns", columns}, {"rows", rows}, {"hint", hint_}};
}

std::string format_share(double share) { return share == 0.0 ? std::string{} : fmt::format("{:.1f} %", share * 100.0); }

std::string bytes_or_nothing(int64_t bytes) { return bytes == 0 ? std::string{} : format_bytes(bytes); }

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

std::string counted(int64_t count, const std::string& unit) {
  return fmt::format("{} {}{}", format_count(count), unit, count == 1 ? "" : "s");
}

std::string format_loss(double loss) { return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss); }

}  // namespace vitrine::tools
