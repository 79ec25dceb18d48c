// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/svg.h"

#include <fmt/format.h>

#include "tools/program/report/html.h"

namespace vitrine::tools::html {

Svg::Svg(double height, std::string_view label) : height_(height), label_(label) {}

void Svg::close_shape(const char* element, std::string_view title) {
  body_ += title.empty() ? std::string("/>\n") : fmt::format("><title>{}</title></{}>\n", escape(title), element);
}

void Svg::rect(double x, double y, double width, double height, std::string_view css_class, std::string_view title) {
  body_ += fmt::format("<rect x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"{}\" class=\"{}\"", number(x), number(y), number(width), number(height),
                       css_class);
  close_shape("rect", title);
}

void Svg::line(Point from, Point to, std::string_view css_class) {
  body_ += fmt::format("<line x1=\"{}%\" y1=\"{}\" x2=\"{}%\" y2=\"{}\" class=\"{}\"/>\n", number(from.x), number(from.y), number(to.x), number(to.y),
                       css_class);
}

void Svg::dot(Point at, double radius, std::string_view css_class, std::string_view title) {
  body_ += fmt::format("<circle cx=\"{}%\" cy=\"{}\" r=\"{}\" class=\"{}\"", number(at.x), number(at.y), number(radius), css_class);
  close_shape("circle", title);
}

void Svg::text(Point at, Anchor anchor, std::string_view css_class, std::string_view text) {
  static constexpr const char* kNames[] = {"start", "middle", "end"};
  body_ += fmt::format("<text x=\"{}%\" y=\"{}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", number(at.x), number(at.y),
                       kNames[static_cast<int>(anchor)], css_class, escape(text));
}

void Svg::clipped_text(double x, double y, double width, std::string_view text, bool hatched) {
  body_ += fmt::format("<svg x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"16\"><text x=\"3\" y=\"12\" class=\"{}\">{}</text></svg>\n", number(x),
                       number(y), number(width), hatched ? "over" : "on", escape(text));
}

void Svg::path(const std::vector<Point>& points, bool closed, std::string_view css_class, std::string_view title) {
  std::string d;
  for (const Point& p : points) d += fmt::format("{}{} {}", d.empty() ? "M" : "L", number(p.x * 10), number(p.y));
  if (closed) d += "Z";
  body_ += fmt::format("<svg width=\"100%\" height=\"{0}\" viewBox=\"0 0 1000 {0}\" preserveAspectRatio=\"none\"><path d=\"{1}\" class=\"{2}\"",
                       number(height_), d, css_class);
  close_shape("path", title);
  body_ += "</svg>\n";
}

std::string Svg::str() const {
  return fmt::format("<svg class=\"chart\" role=\"img\" aria-label=\"{}\" width=\"100%\" height=\"{}\">\n{}</svg>\n", escape(label_), number(height_),
                     body_);
}

}  // namespace vitrine::tools::html
