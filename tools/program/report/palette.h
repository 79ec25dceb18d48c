// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "runtime/memory/category.h"
#include "runtime/trace/span.h"

namespace vitrine::tools::html {

/// A colour and the class that paints with it. The same on light and dark pages: each has a contrast of 3 to both, and of 4.5 to kInk, the text on
/// it.
struct Paint {
  const char* css_class;
  const char* colour;  // "#rrggbb"
};

inline constexpr const char* kInk = "#101316";
inline constexpr const char* kLightPage = "#ffffff";
inline constexpr const char* kDarkPage = "#15181c";

/// The same everywhere.
const Paint& category_paint(Category category);
/// Phases that serve the same end share a colour.
const Paint& phase_paint(Phase phase);
/// Time in which communication held up the device.
const Paint& exposed_paint();
std::span<const Paint> all_paints();

/// The rules of all classes.
std::string palette_css();

}  // namespace vitrine::tools::html
