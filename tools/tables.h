// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vitrine::tools {

/// How text looks on a stream: colours only on a terminal, and never with NO_COLOR in the environment.
struct Style {
  bool colour = false;
  /// That of a file descriptor.
  static Style of(int descriptor);
  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
};

/// A table for the terminal: a title, columns that line up, and a line beneath that says how to read it. ASCII.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns, std::string title = {});
  /// One cell for each column; missing ones are empty.
  void add_row(std::vector<std::string> cells);
  /// A line across the table.
  void add_rule();
  void set_hint(std::string hint) { hint_ = std::move(hint); }
  std::string str(const Style& style) const;

 private:
  std::string title_, hint_;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

/// "12.3 %", "0.4 %"; "" for 0.
std::string format_share(double share);
/// Milliseconds with three digits that count: "123", "12.3", "1.23", "0.012"; "" for 0.
std::string format_ms(double seconds);
/// "12,345".
std::string format_count(int64_t count);

}  // namespace vitrine::tools
