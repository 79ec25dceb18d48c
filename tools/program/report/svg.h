// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vitrine::tools::html {

/// A chart as wide as the page: x in percent of the width, y in pixels from the top. Text keeps its size on every screen.
/// The `title` of a shape is what hovering over it tells. All text is escaped here.
class Svg {
 public:
  enum class Anchor { start, middle, end };
  struct Point {
    double x;  // percent
    double y;  // pixels
  };

  /// label  what the chart shows, for those who cannot see it
  Svg(double height, std::string_view label);

  void rect(double x, double y, double width, double height, std::string_view css_class, std::string_view title = {});
  void line(Point from, Point to, std::string_view css_class);
  void dot(Point at, double radius, std::string_view css_class, std::string_view title = {});
  void text(Point at, Anchor anchor, std::string_view css_class, std::string_view text);
  /// As much of the text as fits between x and x + width, on a paint or (hatched) on a pattern.
  void clipped_text(double x, double y, double width, std::string_view text, bool hatched = false);
  /// Closed and filled, or open and drawn.
  void area(const std::vector<Point>& points, std::string_view css_class, std::string_view title = {}) { path(points, true, css_class, title); }
  void curve(const std::vector<Point>& points, std::string_view css_class, std::string_view title = {}) { path(points, false, css_class, title); }

  std::string str() const;

 private:
  void path(const std::vector<Point>& points, bool closed, std::string_view css_class, std::string_view title);
  void close_shape(const char* element, std::string_view title);
  double height_;
  std::string label_, body_;
};

}  // namespace vitrine::tools::html
