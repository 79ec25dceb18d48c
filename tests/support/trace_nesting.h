// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace vitrine::test {

/// Describes the first nesting error in the events of a Chrome trace: two slices of a thread that overlap without one
/// containing the other, or a slice listed before the one that contains it. Empty when all slices nest.
inline std::string first_overlap(const nlohmann::json& events) {
  struct Slice {
    int64_t begin_ns, end_ns;
    std::string name;
  };
  const auto nanoseconds = [](const nlohmann::json& microseconds) {
    return std::llround(microseconds.get<double>() * 1e3);
  };
  std::map<std::pair<int, int>, std::vector<Slice>> threads;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "X") continue;
    const int64_t begin = nanoseconds(event.at("ts"));
    threads[{event.at("pid"), event.at("tid")}].push_back(
        {begin, begin + nanoseconds(event.at("dur")), event.at("name")});
  }
  for (auto& [thread, slices] : threads) {
    std::ranges::stable_sort(slices, [](const Slice& a, const Slice& b) { return a.begin_ns < b.begin_ns; });
    std::vector<Slice> open;
    for (const Slice& slice : slices) {
      while (!open.empty() && open.back().end_ns <= slice.begin_ns) open.pop_back();
      if (slice.end_ns < slice.begin_ns) return slice.name + " ends before it begins";
      if (!open.empty() && slice.end_ns > open.back().end_ns) return slice.name + " reaches out of " + open.back().name;
      open.push_back(slice);
    }
  }
  return {};
}

}  // namespace vitrine::test
