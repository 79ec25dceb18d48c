// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine::tools::html {

struct CurvePoint {
  double x = 0;
  double y = 0;  // not finite: a gap
};

struct Curve {
  std::string name;
  std::string css_class;  // a paint's
  std::vector<CurvePoint> points;
  bool dots = false;   // each point has a dot that tells it
  bool steps = false;  // a value holds until the next one
};

struct CurveChart {
  std::string label;   // what it shows
  std::string x_name;  // "step"
  std::vector<Curve> curves;
  bool from_zero = true;     // the axis begins at 0, else at the smallest value
  bool logarithmic = false;  // in powers of two
};

/// HTML: curves over a common axis, each named above with its last value. Long ones are thinned out: of each stretch the smallest and the largest
/// value stay. Empty where there are no points.
std::string curve_chart(const CurveChart& chart);

}  // namespace vitrine::tools::html
