// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/program/render/html/charts.h"
#include "tools/program/text/scale.h"

namespace vitrine::tools::html {

namespace {

// Categories that differ by less than this share of the fullest device's peak share a row.
constexpr double kShareShown = 0.005;
constexpr size_t kTensorsNamed = 2;

/// "gathered outputs 2 MiB, 3 more".
std::string tensors_text(const std::vector<std::pair<int64_t, std::string>>& tensors) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(tensors.size(), kTensorsNamed); ++i) {
    names.push_back(fmt::format("{} {}", tensors[i].second, short_bytes(tensors[i].first)));
  }
  if (tensors.size() > kTensorsNamed) names.push_back(fmt::format("{} more", tensors.size() - kTensorsNamed));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Json difference_chart(const std::vector<DeviceRecord>& devices) {
  if (devices.size() < 2) return {};
  const DeviceRecord &emptiest = devices[tools::emptiest(devices)], &fullest = devices[tools::fullest(devices)];
  if (emptiest.pool.peak_bytes == fullest.pool.peak_bytes) return {};

  Json rows = Json::array();
  const auto add_total = [&](const DeviceRecord& d) {
    rows.push_back({{"label", fmt::format("{} at its peak", d.device)},
                    {"begin", 0},
                    {"end", d.pool.peak_bytes},
                    {"text", short_bytes(d.pool.peak_bytes)}});
  };
  add_total(emptiest);
  int64_t level = emptiest.pool.peak_bytes, largest = fullest.pool.peak_bytes, rest = 0;
  const auto add = [&](const std::string& label, const char* paint, int64_t bytes) {
    const std::string text = fmt::format("{}{}", bytes < 0 ? "\u2212" : "+", short_bytes(std::abs(bytes)));
    rows.push_back({{"label", label}, {"begin", level}, {"end", level + bytes}, {"text", text}, {"paint", paint}});
    level += bytes;
    largest = std::max(largest, level);
  };
  for (const auto& [category, bytes, tensors] : memory_differences(fullest, emptiest)) {
    if (static_cast<double>(std::abs(bytes)) < kShareShown * static_cast<double>(fullest.pool.peak_bytes)) {
      rest += bytes;
      continue;
    }
    const char* name = category_name(category);
    add(tensors.empty() ? name : fmt::format("{}: {}", name, tensors_text(tensors)), name, bytes);
  }
  if (rest != 0) add("smaller differences", "", rest);  // of several categories: no color of its own
  add_total(fullest);
  return {{"kind", "waterfall"},
          {"label", fmt::format("Why {} holds more than {}", fullest.device, emptiest.device)},
          {"largest", largest},
          {"rows", rows}};
}

}  // namespace vitrine::tools::html
