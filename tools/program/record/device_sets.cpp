// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/device_sets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace vitrine::tools {

namespace {

constexpr size_t kRangesNamed = 3;

}  // namespace

std::string DeviceSet::name(std::span<const std::string> names) const {
  std::string text;
  size_t ranges = 0, named = 0;
  for (size_t begin = 0; begin < members.size() && ranges < kRangesNamed; ++ranges) {
    size_t end = begin + 1;
    while (end < members.size() && members[end] == members[end - 1] + 1) ++end;
    text += fmt::format("{}{}", begin == 0 ? "" : ", ", names[members[begin]]);
    if (end - begin > 1) text += fmt::format("{}{}", end - begin == 2 ? ", " : " to ", names[members[end - 1]]);
    named = begin = end;
  }
  return named == members.size() ? text : text + fmt::format(" and {} more", members.size() - named);
}

std::vector<DeviceSet> group_devices(size_t devices, const std::function<bool(size_t, size_t)>& agree) {
  std::vector<DeviceSet> sets;
  for (size_t d = 0; d < devices; ++d) {
    const auto found = std::ranges::find_if(sets, [&](const DeviceSet& set) { return agree(set.first(), d); });
    if (found == sets.end()) {
      sets.push_back({{d}});
    } else {
      found->members.push_back(d);
    }
  }
  return sets;
}

DeviceSet all_devices(size_t devices) {
  DeviceSet set{std::vector<size_t>(devices)};
  std::iota(set.members.begin(), set.members.end(), size_t{0});
  return set;
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  Spread spread;
  spread.most_at = static_cast<size_t>(std::ranges::max_element(values) - values.begin());
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  spread.least = values.front(), spread.most = values.back();
  spread.median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return spread;
}

Spread spread_of(const DeviceSet& set, const std::function<double(size_t)>& value) {
  std::vector<double> values;
  for (const size_t member : set.members) values.push_back(value(member));
  Spread spread = spread_of(std::move(values));
  spread.most_at = set.members[spread.most_at];
  return spread;
}

}  // namespace vitrine::tools
