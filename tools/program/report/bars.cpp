// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/bars.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/program/report/html.h"
#include "tools/program/report/svg.h"

namespace vitrine::tools::html {

namespace {

constexpr double kRow = 44, kLabel = 16, kBar = 20;

}  // namespace

std::string stacked_bars(const std::string& label, const std::vector<Bar>& bars, double largest) {
  if (bars.empty() || !(largest > 0)) return {};
  Svg svg(kRow * static_cast<double>(bars.size()), label);
  double top = 0;
  for (const Bar& bar : bars) {
    svg.text({0, top + kLabel - 4}, Svg::Anchor::start, "name", bar.label);
    svg.text({100, top + kLabel - 4}, Svg::Anchor::end, "name", bar.total);
    svg.rect(0, top + kLabel, 100, kBar, "track");
    double x = 0;
    for (const BarPart& part : bar.parts) {
      const double width = 100 * part.value / largest;
      if (width <= 0) continue;
      svg.rect(x, top + kLabel, width, kBar, "part " + part.css_class, fmt::format("{}: {} {}", bar.label, part.name, part.text));
      if (width >= 9) svg.clipped_text(x, top + kLabel + 2, width, part.name, part.css_class.rfind("hatched", 0) == 0);
      x += width;
    }
    top += kRow;
  }
  return svg.str();
}

std::string legend(const std::vector<Bar>& bars) {
  std::vector<std::string> known;
  std::string text = "<ul class=\"legend\">";
  for (const Bar& bar : bars) {
    for (const BarPart& part : bar.parts) {
      if (part.value <= 0 || std::find(known.begin(), known.end(), part.name) != known.end()) continue;
      known.push_back(part.name);
      text += fmt::format("<li><span class=\"swatch {}\"></span>{}</li>", part.css_class, escape(part.name));
    }
  }
  return text + "</ul>\n";
}

}  // namespace vitrine::tools::html
