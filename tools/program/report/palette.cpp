// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/palette.h"

#include <array>

#include <fmt/format.h>

namespace vitrine::tools::html {

namespace {

enum Name : size_t { blue, orange, green, rose, slate, gold, violet, brown, grey, teal, sand, red };

constexpr std::array<Paint, 12> kPaints = {{{"blue", "#4f8fd6"},
                                            {"orange", "#d27c27"},
                                            {"green", "#4fa35f"},
                                            {"rose", "#dd6b7f"},
                                            {"slate", "#8793a3"},
                                            {"gold", "#ad8c28"},
                                            {"violet", "#9b82d6"},
                                            {"brown", "#a98565"},
                                            {"grey", "#929292"},
                                            {"teal", "#2fa39b"},
                                            {"sand", "#9a9070"},
                                            {"red", "#e0605a"}}};

Name category_colour(Category category) {
  switch (category) {
    case Category::parameters:
      return blue;
    case Category::gradients:
      return orange;
    case Category::optimizer:
      return green;
    case Category::activations:
      return rose;
    case Category::workspace:
      return slate;
    case Category::staging:
      return gold;
    case Category::communication:
      return violet;
    case Category::fragmentation:
      break;
  }
  return grey;
}

/// A phase has the colour of the memory that it fills or uses up, where there is one.
Name phase_colour(Phase phase) {
  switch (phase) {
    case Phase::data:
    case Phase::stage:
    case Phase::scatter:
    case Phase::preprocess:
      return gold;
    case Phase::forward:
      return rose;
    case Phase::gather:
    case Phase::loss:
    case Phase::scatter_grad:
      return teal;
    case Phase::backward:
      return orange;
    case Phase::recompute:
      return brown;
    case Phase::reduce:
    case Phase::replicate:
    case Phase::broadcast:
      return violet;
    case Phase::unscale:
    case Phase::optimizer:
    case Phase::cast:
      return green;
    case Phase::wait:
      return grey;
    default:
      return sand;
  }
}

}  // namespace

const Paint& category_paint(Category category) { return kPaints[category_colour(category)]; }
const Paint& phase_paint(Phase phase) { return kPaints[phase_colour(phase)]; }
const Paint& exposed_paint() { return kPaints[red]; }
std::span<const Paint> all_paints() { return kPaints; }

std::string palette_css() {
  std::string css;
  for (const Paint& paint : kPaints) css += fmt::format(".{0}{{fill:{1};background:{1}}}\n", paint.css_class, paint.colour);
  return css;
}

}  // namespace vitrine::tools::html
