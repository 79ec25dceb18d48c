// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/page.h"

#include <fmt/format.h>

#include "tools/program/output_file.h"
#include "tools/program/report/html.h"
#include "tools/program/report/page_style.h"
#include "tools/program/report/palette.h"

namespace vitrine::tools::html {

namespace {

/// Curves are drawn in a paint's colour, not filled with it.
std::string curve_css() {
  std::string css;
  for (const Paint& paint : all_paints()) css += fmt::format("svg .curve.{}{{stroke:{}}}\n", paint.css_class, paint.colour);
  return css;
}

}  // namespace

void Page::add_section(std::string_view title, std::string_view content) {
  if (content.empty()) return;
  const std::string id = fmt::format("part{}", ++sections_);
  navigation_ += fmt::format("<a href=\"#{}\">{}</a>\n", id, escape(title));
  body_ += fmt::format("<section id=\"{}\"><h2>{}</h2>\n{}</section>\n", id, escape(title), content);
}

std::string Page::str() const {
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n";
  page += "<title>" + escape(title_) + "</title>\n<style>" + kPageStyle + palette_css() + curve_css() + "</style></head>\n<body>\n" + kPatterns;
  page += "<header><h1>" + escape(title_) + "</h1>\n<nav>" + navigation_ + "</nav></header>\n<main>\n" + body_ + "</main>\n";
  return page + "<script>" + kPageScript + "</script>\n</body></html>\n";
}

void write_page(const std::string& option, const std::string& path, const Page& page) {
  write_output_file(option, path, [&](std::ostream& file) { file << page.str(); });
}

}  // namespace vitrine::tools::html
