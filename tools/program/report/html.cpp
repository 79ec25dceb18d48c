// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/html.h"

#include <cmath>

#include <fmt/format.h>

namespace vitrine::tools::html {

namespace {

/// Length of the UTF-8 sequence at the beginning of `text`, 0 where there is none that a page may hold.
size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return lead >= 0x20 || lead == '\n' || lead == '\t' ? 1 : 0;
  const size_t length = lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) {
      escaped += "\xEF\xBF\xBD";
    } else if (length > 1) {
      escaped += text.substr(0, length);
    } else {
      switch (text[0]) {
        case '&':
          escaped += "&amp;";
          break;
        case '<':
          escaped += "&lt;";
          break;
        case '>':
          escaped += "&gt;";
          break;
        case '"':
          escaped += "&quot;";
          break;
        case '\'':
          escaped += "&#39;";
          break;
        default:
          escaped += text[0];
      }
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped;
}

std::string number(double value) {
  if (!std::isfinite(value)) return "0";
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string HtmlTable::str() const {
  std::string text = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& cell : header_) text += "<th scope=\"col\">" + escape(cell) + "</th>";
  text += "</tr></thead><tbody>\n";
  for (const Row& row : rows_) {
    text += row.strong ? "<tr class=\"sum\">" : "<tr>";
    for (size_t c = 0; c < header_.size(); ++c) {
      const std::string cell = c < row.cells.size() ? escape(row.cells[c]) : std::string();
      text += c == 0 ? "<th scope=\"row\">" + cell + "</th>" : "<td>" + cell + "</td>";
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string paragraph(std::string_view text, std::string_view css_class) {
  return css_class.empty() ? "<p>" + escape(text) + "</p>\n" : fmt::format("<p class=\"{}\">{}</p>\n", css_class, escape(text));
}

std::string folding(std::string_view summary, std::string_view content) {
  return fmt::format("<details open><summary>{}</summary>\n{}</details>\n", escape(summary), content);
}

}  // namespace vitrine::tools::html
