// SPDX-License-Identifier: Apache-2.0
// The colors of the HTML report: contrast, and which of them look alike.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"
#include "tools/program/render/html/page.h"

namespace vitrine::tools::html {
namespace {

/// WCAG's contrast of two colors "#rrggbb".
double contrast(const std::string& a, const std::string& b) {
  const auto luminance = [](const std::string& color) {
    double sum = 0;
    const double weights[] = {0.2126, 0.7152, 0.0722};
    for (size_t i = 0; i < 3; ++i) {
      const double part = std::stoi(color.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
      sum += weights[i] * (part <= 0.03928 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4));
    }
    return sum;
  };
  const double first = luminance(a), second = luminance(b);
  return (std::max(first, second) + 0.05) / (std::min(first, second) + 0.05);
}

std::map<std::string, std::string> matches(const std::string& pattern) {
  const std::string text(page_template());
  const std::regex expression(pattern);
  std::map<std::string, std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), expression), end; match != end; ++match)
    found[(*match)[1]] = (*match)[2];
  return found;
}

/// The template's colors: "blue" -> "#4f8fd6".
std::map<std::string, std::string> colors() { return matches(R"(\.(\w+)\{--paint:(#\w{6})(?:;--over:#fff)?\})"); }
/// Those with white text: "olive" -> "#836615".
std::map<std::string, std::string> dark_colors() { return matches(R"(\.(\w+)\{--paint:(#\w{6});--over:#fff\})"); }
/// What they mean: "parameters" -> "blue".
std::map<std::string, std::string> paints() { return matches(R"((\w+): '([\w-]+)')"); }

/// How different two colors look, in OKLab: 0.02 is just visible side by side.
double distance(const std::string& a, const std::string& b) {
  const auto lab = [](const std::string& color) {
    std::array<double, 3> c{};
    for (size_t i = 0; i < 3; ++i) {
      const double value = std::stoi(color.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
      c[i] = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
    }
    const double l = std::cbrt(0.4122214708 * c[0] + 0.5363325363 * c[1] + 0.0514459929 * c[2]);
    const double m = std::cbrt(0.2119034982 * c[0] + 0.6806995451 * c[1] + 0.1073969566 * c[2]);
    const double s = std::cbrt(0.0883024619 * c[0] + 0.2817188376 * c[1] + 0.6299787005 * c[2]);
    return std::array<double, 3>{0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
                                 1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
                                 0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
  };
  const auto first = lab(a), second = lab(b);
  return std::hypot(first[0] - second[0], first[1] - second[1], first[2] - second[2]);
}

TEST(Palette, EveryColorIsVisibleOnLightAndDarkAndBehindText) {
  const char *light = "#ffffff", *dark = "#15181c", *ink = "#101316";
  for (const std::string& rule :
       {"--page:" + std::string(light), "--page:" + std::string(dark), ".on{fill:var(--over," + std::string(ink)}) {
    expect_contains(std::string(page_template()), rule);
  }
  EXPECT_EQ(colors().size(), 24U);
  const auto dark_ones = dark_colors();
  for (const auto& [name, color] : colors()) {
    EXPECT_GE(contrast(color, light), 3.0) << name;
    EXPECT_GE(contrast(color, dark), 3.0) << name;
    EXPECT_GE(contrast(color, dark_ones.contains(name) ? light : ink), 4.5) << name;
  }
}

TEST(Palette, ColorsDifferVisibly) {
  const auto all = colors();
  for (auto a = all.begin(); a != all.end(); ++a) {
    for (auto b = std::next(a); b != all.end(); ++b)
      EXPECT_GE(distance(a->second, b->second), 0.05) << a->first << " and " << b->first;
  }
}

TEST(Palette, CategoriesDifferFromEachOtherAndFromPhases) {
  std::map<std::string, std::string> all = paints(), known = colors();
  std::set<std::string> used;
  for (int c = 0; c < kCategoryCount; ++c) {
    const std::string color = all[category_name(static_cast<Category>(c))];
    EXPECT_EQ(known.count(color), 1U) << category_name(static_cast<Category>(c));
    EXPECT_TRUE(used.insert(color).second) << color;
  }
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    const std::string color = all[phase == Phase::optimizer ? "update" : phase_name(phase)];
    EXPECT_NE(color, "") << phase_name(phase);
    EXPECT_FALSE(used.contains(color)) << phase_name(phase) << " has the color of a category of memory";
  }
  for (const char* other : {"outside", "hidden", "exposed", "series1", "series2", "series3", "series4"}) {
    EXPECT_TRUE(used.insert(all[other]).second) << other;
  }
}

TEST(Palette, SeverityAndWaitsHaveNoColorOfMemoryOrAPhase) {
  const std::string whole(page_template());
  const std::string style = whole.substr(whole.find(".findings"), whole.find(".scroll{") - whole.find(".findings"));
  const std::string hatch =
      whole.substr(whole.find(".hatched{"), whole.find(".hatched-lime{") - whole.find(".hatched{"));
  for (const auto& [name, color] : colors()) {
    EXPECT_EQ(style.find(color), std::string::npos) << "a finding has the color " << name;
    EXPECT_EQ(hatch.find(color), std::string::npos) << "waits have the color " << name;
  }
  expect_contains(hatch, "var(--soft)");
}

}  // namespace
}  // namespace vitrine::tools::html
