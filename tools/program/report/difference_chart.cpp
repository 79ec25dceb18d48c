// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/program/report/charts.h"
#include "tools/program/report/scale.h"

namespace vitrine::tools::html {

namespace {

// Categories that differ by less than this share of the fullest device's peak share a row.
constexpr double kShareShown = 0.005;
constexpr size_t kTensorsNamed = 2;

using BytesByTensor = std::map<std::string, int64_t>;

BytesByTensor held_at_peak(const DeviceRecord& device, Category category) {
  BytesByTensor bytes;
  if (!device.memory) return bytes;
  for (const HeldBlock& block : device.memory->blocks) {
    if (block.category == category && device.memory->holds_at_peak(block)) bytes[block.tensor] += block.bytes;
  }
  return bytes;
}

/// The tensors that account for most of the difference, with the bytes that the fuller device holds more: "gathered outputs 2 MiB"; empty if the
/// recorded step does not show it.
std::string reason_of(const DeviceRecord& fuller, const DeviceRecord& emptier, Category category) {
  BytesByTensor more = held_at_peak(fuller, category);
  for (const auto& [tensor, bytes] : held_at_peak(emptier, category)) more[tensor] -= bytes;
  std::vector<std::pair<int64_t, std::string>> largest;
  for (const auto& [tensor, bytes] : more) {
    if (bytes > 0) largest.emplace_back(bytes, tensor);
  }
  std::sort(largest.rbegin(), largest.rend());
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(largest.size(), kTensorsNamed); ++i) {
    names.push_back(fmt::format("{} {}", largest[i].second, short_bytes(largest[i].first)));
  }
  if (largest.size() > kTensorsNamed) names.push_back(fmt::format("{} more", largest.size() - kTensorsNamed));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Json difference_chart(const std::vector<DeviceRecord>& devices) {
  if (devices.size() < 2) return {};
  const DeviceRecord &emptiest = devices[tools::emptiest(devices)], &fullest = devices[tools::fullest(devices)];
  if (emptiest.pool.peak_bytes == fullest.pool.peak_bytes) return {};

  std::vector<std::pair<Category, int64_t>> differences;
  for (size_t c = 0; c < fullest.pool.peak_by_category.size(); ++c) {
    const int64_t bytes = fullest.pool.peak_by_category[c] - emptiest.pool.peak_by_category[c];
    if (bytes != 0) differences.emplace_back(static_cast<Category>(c), bytes);
  }
  std::stable_sort(differences.begin(), differences.end(), [](const auto& a, const auto& b) { return a.second > b.second; });

  Json rows = Json::array();
  const auto add_total = [&](const DeviceRecord& d) {
    rows.push_back(
        {{"label", fmt::format("{} at its peak", d.device)}, {"begin", 0}, {"end", d.pool.peak_bytes}, {"text", short_bytes(d.pool.peak_bytes)}});
  };
  add_total(emptiest);
  int64_t level = emptiest.pool.peak_bytes, largest = fullest.pool.peak_bytes, rest = 0;
  const auto add = [&](const std::string& label, const char* paint, int64_t bytes) {
    const std::string text = fmt::format("{}{}", bytes < 0 ? "\u2212" : "+", short_bytes(std::abs(bytes)));
    rows.push_back({{"label", label}, {"begin", level}, {"end", level + bytes}, {"text", text}, {"paint", paint}});
    level += bytes;
    largest = std::max(largest, level);
  };
  for (const auto& [category, bytes] : differences) {
    if (static_cast<double>(std::abs(bytes)) < kShareShown * static_cast<double>(fullest.pool.peak_bytes)) {
      rest += bytes;
      continue;
    }
    const char* name = category_name(category);
    const std::string reason = bytes > 0 ? reason_of(fullest, emptiest, category) : reason_of(emptiest, fullest, category);
    add(reason.empty() ? name : fmt::format("{}: {}", name, reason), name, bytes);
  }
  if (rest != 0) add("smaller differences", "", rest);  // of several categories: no color of its own
  add_total(fullest);
  return {{"kind", "waterfall"},
          {"label", fmt::format("Why {} holds more than {}", fullest.device, emptiest.device)},
          {"largest", largest},
          {"rows", rows}};
}

}  // namespace vitrine::tools::html
