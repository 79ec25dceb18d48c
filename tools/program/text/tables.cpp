// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/tables.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "runtime/units.h"
#include "tools/program/text/html_text.h"

namespace vitrine::tools {
namespace {

constexpr size_t kGap = 2;         // between columns
constexpr size_t kLeastText = 16;  // of a column that is wrapped

}  // namespace

Table::Table(std::vector<Column> columns, std::string title) : title_(std::move(title)), columns_(std::move(columns)) {
  for (Column& column : columns_) column.title = printable_lines(column.title);  // classes have the names of folders
}

void Table::add_row(std::vector<std::string> cells) {
  VITRINE_ASSERT(cells.size() <= columns_.size(), "a row has more cells than the table has columns");
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = printable_lines(cell);
  rows_.push_back(std::move(cells));
}

void Table::add_rule() { rows_.emplace_back(); }

void Table::add_rule_above_total() {
  add_rule();
  totals_.push_back(rows_.size());
}

size_t Table::natural_width(size_t column) const {
  size_t width = columns_[column].title.size();
  for (const auto& row : rows_) width = row.empty() ? width : std::max(width, row[column].size());
  return width;
}

size_t Table::least_width(size_t column) const {
  const size_t width = natural_width(column);
  return columns_[column].align == Align::right ? width : std::min(width, kLeastText);
}

size_t Table::least_width(const Columns& columns) const {
  size_t total = 0;
  for (const size_t c : columns) total += least_width(c) + kGap;
  return total - std::min(total, kGap);
}

std::vector<Table::Columns> Table::blocks(size_t width, std::vector<std::string>& left_out) const {
  Columns shown(columns_.size());
  std::iota(shown.begin(), shown.end(), size_t{0});
  int most = 0;
  for (const Column& column : columns_) most = std::max(most, column.spare);
  for (int spare = most; spare > 0 && least_width(shown) > width; --spare) {
    for (const size_t c : shown) {
      const std::string& title = columns_[c].title;
      const bool named = std::find(left_out.begin(), left_out.end(), title) != left_out.end();
      if (columns_[c].spare == spare && !named) left_out.push_back(title);
    }
    std::erase_if(shown, [&](size_t c) { return columns_[c].spare == spare; });
  }
  if (least_width(shown) <= width) return {shown};
  const auto keys = shown.begin() + static_cast<std::ptrdiff_t>(std::min(key_columns_, shown.size()));
  std::vector<Columns> blocks = {Columns(shown.begin(), keys)};
  for (auto c = keys; c != shown.end(); ++c) {
    Columns& full = blocks.back();
    full.push_back(*c);
    if (full.size() == key_columns_ + 1 || least_width(full) <= width) continue;
    const auto heads = [&](size_t i) { return columns_[i].title.find(": ") != std::string::npos; };
    const auto first = std::find_if(full.begin() + (keys - shown.begin()) + 1, full.end() - 1, heads);
    c -= full.end() - first;  // the next block starts with this column
    full.erase(first, full.end());
    blocks.emplace_back(shown.begin(), keys);
  }
  return blocks;
}

std::string Table::block(const Columns& columns, const Style& style) const {
  // Texts take what the numbers leave, the widest ones last.
  std::vector<size_t> widths;
  size_t total = kGap * (columns.size() - 1);
  for (const size_t c : columns) total += widths.emplace_back(natural_width(c));
  const auto can_give = [&](size_t i) { return widths[i] - least_width(columns[i]); };
  for (const auto limit = static_cast<size_t>(style.width); total > limit;) {
    size_t widest = 0;
    for (size_t i = 1; i < widths.size(); ++i) widest = can_give(i) > can_give(widest) ? i : widest;
    const size_t less = std::min(can_give(widest), total - limit);
    if (less == 0) break;
    widths[widest] -= less, total -= less;
  }
  const auto row_text = [&](const auto& cell) {
    std::vector<std::vector<std::string>> cells;
    size_t height = 1;
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string& text = cell(columns[i]);
      const bool whole = columns_[columns[i]].align == Align::verbatim;
      cells.push_back(split_text(whole ? text : wrap(text, static_cast<int>(widths[i])), '\n'));
      height = std::max(height, cells.back().size());
    }
    std::string text;
    for (size_t line = 0; line < height; ++line) {
      std::string part;
      for (size_t i = 0; i < columns.size(); ++i) {
        const std::string content = line < cells[i].size() ? cells[i][line] : std::string();
        if (i > 0) part.append(kGap, ' ');
        part += columns_[columns[i]].align == Align::right ? fmt::format("{:>{}}", content, widths[i])
                                                           : fmt::format("{:<{}}", content, widths[i]);
      }
      if (line > 0) text += '\n';
      text += part.erase(part.find_last_not_of(' ') + 1);
    }
    return text;
  };
  const std::string rule(total, '-');
  std::string text =
      style.bold(row_text([&](size_t c) -> const std::string& { return columns_[c].title; })) + "\n" + rule + "\n";
  for (const auto& row : rows_) {
    const auto says_nothing = [&](size_t c) { return c < key_columns_ || row[c].empty(); };
    if (!row.empty() && columns.size() < columns_.size() && std::ranges::all_of(columns, says_nothing)) continue;
    text += (row.empty() ? rule : row_text([&](size_t c) -> const std::string& { return row[c]; })) + "\n";
  }
  return text;
}

std::string Table::str(const Style& style) const {
  std::string text;
  if (!title_.empty()) text += style.bold(wrap(title_, style.width)) + "\n";
  std::vector<std::string> left_out;
  bool first = true;
  for (const Columns& columns : blocks(static_cast<size_t>(style.width), left_out)) {
    if (!first) text += '\n';
    text += block(columns, style);
    first = false;
  }
  std::string hint = hint_;
  if (!left_out.empty())
    hint += fmt::format("{}Not shown, for lack of width: {}.", hint.empty() ? "" : " ", fmt::join(left_out, ", "));
  for (const std::string& title : left_out) {
    const size_t at = hint.find(title + ": ");
    if (at != std::string::npos) hint.erase(at, hint.find(". ", at) + 2 - at);
  }
  if (!hint.empty()) text += style.dim(wrap(hint, style.width)) + "\n";
  return text;
}

std::string Table::html() const {
  const auto cell = [&](const char* element, const char* scope, size_t column, const std::string& text) {
    std::string content;
    for (const char c : escape_html(text)) {
      const bool after_number = !content.empty() && std::isdigit(static_cast<unsigned char>(content.back())) != 0;
      content.append(c == ' ' && after_number ? "\u00a0" : std::string_view(&c, 1));
    }
    return fmt::format("<{0}{1}{2}>{3}</{0}>", element, scope,
                       columns_[column].align == Align::right ? "" : " class=\"left\"", content);
  };
  std::string html = "<div class=\"scroll\"><table>";
  if (!title_.empty()) html += fmt::format("<caption><span>{}</span></caption>", escape_html(title_));
  html += "<thead><tr>";
  for (size_t c = 0; c < columns_.size(); ++c) html += cell("th", " scope=\"col\"", c, columns_[c].title);
  html += "</tr></thead><tbody>";
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].empty()) continue;
    const bool rule = r > 0 && rows_[r - 1].empty(), total = std::ranges::find(totals_, r) != totals_.end();
    html += total ? "<tr class=\"rule total\">" : rule ? "<tr class=\"rule\">" : "<tr>";
    for (size_t c = 0; c < columns_.size(); ++c)
      html += c == 0 ? cell("th", " scope=\"row\"", c, rows_[r][c]) : cell("td", "", c, rows_[r][c]);
    html += "</tr>\n";
  }
  html += "</tbody></table></div>";
  return hint_.empty() ? html : html + fmt::format("<p class=\"soft\">{}</p>", escape_html(hint_));
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

std::string short_bytes(int64_t bytes) {
  std::string text = format_bytes(bytes);
  if (const size_t fraction = text.find(".0 "); fraction != std::string::npos) text.erase(fraction, 2);
  return text;
}

std::string short_seconds(double seconds) {
  if (seconds == 0) return "0";
  const auto [value, unit] = seconds >= 1      ? std::pair{seconds, "s"}
                             : seconds >= 1e-3 ? std::pair{seconds * 1e3, "ms"}
                                               : std::pair{seconds * 1e6, "us"};
  std::string text = fmt::format("{:.{}f}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return fmt::format("{} {}", text, unit);
}

std::string percent(double share) {
  const double hundredths = share * 100;
  return hundredths != 0 && std::abs(hundredths) < 10 ? fmt::format("{:.1f} %", hundredths)
                                                      : fmt::format("{:.0f} %", hundredths);
}

std::string format_count(int64_t count) {
  std::string text = fmt::format("{}", count);
  const size_t first = text[0] == '-' ? 1 : 0;
  for (size_t end = text.size(); end > first + 3; end -= 3) text.insert(end - 3, 1, ',');
  return text;
}

std::string format_rate(double rate) {
  return rate > 0.0 && rate < 10.0 ? fmt::format("{:.2g}", rate) : format_count(std::llround(rate));
}

std::string counted(int64_t count, const std::string& unit) {
  return fmt::format("{} {}{}", format_count(count), unit, count == 1 ? "" : "s");
}

std::string format_duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  const int64_t minutes = std::llround(seconds / 60.0);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::string format_loss(double loss) { return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss); }

}  // namespace vitrine::tools
