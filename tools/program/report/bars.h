// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine::tools::html {

/// A part of a bar.
struct BarPart {
  std::string name;
  std::string css_class;
  double value = 0;
  std::string text;  // the value with its unit
};

/// A row of a bar chart.
struct Bar {
  std::string label;
  std::vector<BarPart> parts;
  std::string total;  // told behind the label
};

/// Rows of stacked bars from 0 to `largest`, each with its label above it and its parts named where they are wide enough.
///   label  what the chart shows
std::string stacked_bars(const std::string& label, const std::vector<Bar>& bars, double largest);

/// What the colours stand for: of the parts of these bars each name once, in order of appearance.
std::string legend(const std::vector<Bar>& bars);

}  // namespace vitrine::tools::html
