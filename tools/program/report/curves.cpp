// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/curves.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tools/program/report/html.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/svg.h"

namespace vitrine::tools::html {

namespace {

constexpr double kTop = 12, kPlotHeight = 170, kBottom = 20;
constexpr size_t kMostPoints = 600;

struct Range {
  double low = INFINITY, high = -INFINITY;
  bool empty() const { return !(low <= high); }
  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// Of each stretch of a long curve its smallest and its largest value.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<CurvePoint> few;
  const size_t stretches = kMostPoints / 2;
  for (size_t s = 0; s < stretches; ++s) {
    const auto at = [&](size_t stretch) { return points.begin() + static_cast<std::ptrdiff_t>(stretch * points.size() / stretches); };
    auto [low, high] = std::minmax_element(at(s), at(s + 1), [](const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    few.push_back(*low);
    if (high != low) few.push_back(*high);
  }
  return few;
}

class Drawing {
 public:
  explicit Drawing(const CurveChart& chart) : chart_(chart), svg_(kTop + kPlotHeight + kBottom, chart.label) {
    for (const Curve& curve : chart.curves) {
      for (const CurvePoint& p : curve.points) {
        across_.include(p.x);
        up_.include(value(p.y));
      }
    }
  }
  bool empty() const { return across_.empty() || up_.empty(); }

  std::string str() {
    if (chart_.from_zero && !chart_.logarithmic) up_.include(0);
    if (up_.low == up_.high) up_.high = up_.low + 1;
    axes();
    for (const Curve& curve : chart_.curves) draw(curve);
    return names() + svg_.str();
  }

 private:
  /// Each curve's name with its last value.
  std::string names() const {
    std::string html = "<ul class=\"legend\">";
    for (const Curve& curve : chart_.curves) {
      const auto last = std::find_if(curve.points.rbegin(), curve.points.rend(), [](const CurvePoint& p) { return std::isfinite(p.y); });
      const std::string value = last == curve.points.rend() ? std::string() : fmt::format(": {:.6g} at last", last->y);
      html += fmt::format("<li><span class=\"swatch {}\"></span>{}{}</li>", curve.css_class, escape(curve.name), value);
    }
    return html + "</ul>\n";
  }

  double value(double y) const { return chart_.logarithmic ? std::log2(y) : y; }
  double x(double at) const { return across_.low == across_.high ? 50 : 1 + 98 * (at - across_.low) / (across_.high - across_.low); }
  double y(double at) const { return kTop + kPlotHeight * (1 - (at - up_.low) / ((up_.high - up_.low) * 1.05)); }

  void axes() {
    const double span = up_.high - up_.low;
    for (const double tick : ticks(span, chart_.logarithmic ? std::clamp(static_cast<int>(span), 1, 4) : 4)) {
      if (tick > span * 1.001) continue;
      const double at = up_.low + tick;
      svg_.line({0, y(at)}, {100, y(at)}, "grid");
      svg_.text({0, y(at) - 3}, Svg::Anchor::start, "axis", chart_.logarithmic ? fmt::format("{:.6g}", std::exp2(at)) : fmt::format("{:.3g}", at));
    }
    const double bottom = kTop + kPlotHeight + 15;
    svg_.text({0, bottom}, Svg::Anchor::start, "axis", fmt::format("{} {:.0f}", chart_.x_name, across_.low));
    if (across_.high > across_.low) svg_.text({100, bottom}, Svg::Anchor::end, "axis", fmt::format("{} {:.0f}", chart_.x_name, across_.high));
  }

  void draw(const Curve& curve) {
    std::vector<Svg::Point> piece;
    const auto finish = [&] {
      if (piece.size() > 1) svg_.curve(piece, "curve " + curve.css_class, curve.name);
      piece.clear();
    };
    for (const CurvePoint& p : thinned(curve.points)) {
      const double at = value(p.y);
      if (!std::isfinite(at)) {
        finish();
        continue;
      }
      if (curve.steps && !piece.empty()) piece.push_back({x(p.x), piece.back().y});
      piece.push_back({x(p.x), y(at)});
    }
    finish();
    if (curve.dots || curve.points.size() == 1) {
      for (const CurvePoint& p : curve.points) {
        if (std::isfinite(value(p.y)))
          svg_.dot({x(p.x), y(value(p.y))}, 4, curve.css_class, fmt::format("{}, {} {:.0f}: {:.4g}", curve.name, chart_.x_name, p.x, p.y));
      }
    }
  }

  const CurveChart& chart_;
  Svg svg_;
  Range across_, up_;
};

}  // namespace

std::string curve_chart(const CurveChart& chart) {
  Drawing drawing(chart);
  return drawing.empty() ? std::string() : drawing.str();
}

}  // namespace vitrine::tools::html
