// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vitrine::tools::html {

/// For text and for attributes in double quotes. Bytes that are no UTF-8 become U+FFFD.
std::string escape(std::string_view text);

/// A number with as many digits as charts need: "12.5", "3".
std::string number(double value);

/// A table whose first column names the row. Cells are text; scrolls by itself where the page is narrow.
class HtmlTable {
 public:
  explicit HtmlTable(std::vector<std::string> header) : header_(std::move(header)) {}
  void add_row(std::vector<std::string> cells, bool strong = false) { rows_.push_back({std::move(cells), strong}); }
  bool empty() const { return rows_.empty(); }
  std::string str() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool strong;  // a sum
  };
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

/// A paragraph of text.
std::string paragraph(std::string_view text, std::string_view css_class = {});

/// A part that can be folded away; open, so that it is printed. `content` is HTML.
std::string folding(std::string_view summary, std::string_view content);

}  // namespace vitrine::tools::html
