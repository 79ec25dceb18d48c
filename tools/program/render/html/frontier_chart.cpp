// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tools/program/render/html/charts.h"
#include "tools/program/text/scale.h"

namespace vitrine::tools::html {

Json frontier_chart(const Record& record) {
  if (!record.frontier || record.frontier->size() < 2) return {};
  const std::vector<RecomputationRecord>& choices = *record.frontier;
  const double most_time = choices.back().added_time;
  Curve peaks{"peak of the fullest device", "series1", {}, /*dots=*/true, /*steps=*/true};
  for (const RecomputationRecord& choice : choices)
    peaks.points.push_back({choice.added_time, static_cast<double>(choice.peak_bytes)});
  CurveChart chart{
      "Peak memory of the fullest device against the time that recomputation adds", {peaks}, false, /*bytes=*/true};
  const std::vector<DeviceRecord>& devices = record.run().devices;
  const auto capacity = static_cast<double>(devices[fullest(devices)].pool.capacity_bytes);
  // A capacity far above all peaks would leave no height to them.
  if (capacity > 0.0 && capacity < 2.0 * peaks.points.front().y) {
    chart.curves.push_back({"capacity", "series2", {{0.0, capacity}, {most_time, capacity}}, false, false, 1});
  }
  Json json = curve_chart(chart);
  if (json.is_null()) return json;
  json["ends"] = {"no time added", fmt::format("+{} of forward and backward", percent(most_time))};
  Json& points = json["curves"][0]["points"];
  for (size_t i = 0; i < choices.size() && i < points.size(); ++i) {
    const RecomputationRecord& choice = choices[i];
    points[i][2] = choice.recompute.empty() ? fmt::format("nothing recomputed: {}", short_bytes(choice.peak_bytes))
                                            : fmt::format("{}, +{}: --recompute {}", short_bytes(choice.peak_bytes),
                                                          percent(choice.added_time), fmt::join(choice.recompute, ","));
  }
  return json;
}

}  // namespace vitrine::tools::html
