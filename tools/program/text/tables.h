// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/program/text/terminal.h"

namespace vitrine::tools {

/// A table: a title, columns, and a hint on how to read it. On the terminal it is ASCII, and no line is longer than the
/// style's width, except for values to be copied. What is too wide is made to fit in this order: texts are wrapped,
/// columns of lesser importance are left out, and the others follow in further blocks, each with the key columns again.
/// A block that lacks columns lacks rows that say something only there. A title such as "in place: time" heads the
/// columns after it, and moves with them to the next block, where they fit.
class Table {
 public:
  enum class Align { left, right, verbatim };  // verbatim: a value to be copied, at the end of the row, never wrapped
  struct Column {
    std::string title;
    Align align = Align::right;
    int spare = 0;  // above 0: may be left out; the highest first
  };

  explicit Table(std::vector<Column> columns, std::string title = {});
  /// One cell for each column; missing ones are empty.
  void add_row(std::vector<std::string> cells);
  /// A line across the table.
  void add_rule();
  /// A line above the row that is added next, the total of those above it. Pages show that row in bold.
  void add_rule_above_total();
  /// A sentence that begins with the title of a column and a colon, "hidden: beside compute.", is left out with the
  /// column.
  void set_hint(std::string hint) { hint_ = std::move(hint); }
  /// The first `count` columns name a row, and are repeated in every block; 1 by default.
  void set_key_columns(size_t count) { key_columns_ = count; }
  bool is_empty() const { return rows_.empty(); }
  /// The table as text for the terminal.
  std::string str(const Style& style) const;
  /// The table for a page. Numbers keep their units where cells wrap.
  std::string html() const;

 private:
  using Columns = std::vector<size_t>;
  size_t natural_width(size_t column) const;
  /// What a column needs at least: texts can be wrapped.
  size_t least_width(size_t column) const;
  size_t least_width(const Columns& columns) const;
  /// The columns that are shown, in blocks that fit. Adds the titles of the others to `left_out`.
  std::vector<Columns> blocks(size_t width, std::vector<std::string>& left_out) const;
  std::string block(const Columns& columns, const Style& style) const;

  std::string title_, hint_;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
  std::vector<size_t> totals_;                  // positions in rows_
  size_t key_columns_ = 1;
};

/// "12.3 %", "0.4 %"; "" for 0.
std::string format_share(double share);
/// Milliseconds with three significant digits: "123", "12.3", "1.23", "0.012"; "" for 0.
std::string format_ms(double seconds);
/// "1.5 MiB"; "" for 0.
std::string bytes_or_nothing(int64_t bytes);
/// "512 MiB", "1.5 GiB": format_bytes() without a fraction of zero.
std::string short_bytes(int64_t bytes);
/// Milliseconds, or a better unit: "12.3 ms", "45 us", "1.2 s".
std::string short_seconds(double seconds);
/// "12 %", "0.4 %".
std::string percent(double share);
/// "12,345".
std::string format_count(int64_t count);
/// A rate per second: "12,345", "31", "0.31".
std::string format_rate(double rate);
/// "1 step", "12,345 steps".
std::string counted(int64_t count, const std::string& unit);
/// "3 h 20 min", "21 min 30 s", "42 s", "0.8 s".
std::string format_duration(double seconds);
/// "2.3026"; "nan" without a sign.
std::string format_loss(double loss);

}  // namespace vitrine::tools
