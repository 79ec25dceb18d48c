// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/memory_charts.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/program/report/html.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/sections.h"

namespace vitrine::tools::html {

namespace {

/// The categories that any of the devices holds.
std::string categories_legend(const std::vector<MemoryChart>& charts) {
  BytesByCategory anywhere{};
  for (const MemoryChart& chart : charts) {
    for (const MemoryMoment& moment : chart.timeline.moments) {
      for (size_t c = 0; c < anywhere.size(); ++c) anywhere[c] = std::max(anywhere[c], moment.by_category[c]);
    }
  }
  return legend({memory_bar({}, anywhere)});
}

bool equal(const MemoryChart& a, const MemoryChart& b) {
  const auto same = [](const MemoryMoment& x, const MemoryMoment& y) {
    return x.by_category == y.by_category && x.extent_bytes == y.extent_bytes && x.phase == y.phase;
  };
  const auto &first = a.timeline.moments, &second = b.timeline.moments;
  return a.capacity_bytes == b.capacity_bytes && a.planned_bytes == b.planned_bytes &&
         std::equal(first.begin(), first.end(), second.begin(), second.end(), same);
}

/// Devices that hold the same to the byte share a chart.
std::vector<MemoryChart> group_equal(const std::vector<MemoryChart>& charts) {
  std::vector<MemoryChart> different;
  std::vector<std::vector<std::string>> names;
  for (const MemoryChart& chart : charts) {
    const auto known = std::find_if(different.begin(), different.end(), [&](const MemoryChart& other) { return equal(other, chart); });
    if (known == different.end()) {
      different.push_back(chart);
      names.push_back({chart.device});
    } else {
      names[static_cast<size_t>(known - different.begin())].push_back(chart.device);
    }
  }
  for (size_t i = 0; i < names.size(); ++i) different[i].device = name_together(names[i]);
  return different;
}

std::string caption_of(const MemoryChart& chart) {
  const int64_t peak = chart.timeline.moments[chart.timeline.peak].extent_bytes;
  std::string caption = "Peak in this step: " + short_bytes(peak);
  if (chart.capacity_bytes > 0) {
    caption += fmt::format(", {} of the capacity of {}", percent(static_cast<double>(peak) / static_cast<double>(chart.capacity_bytes)),
                           short_bytes(chart.capacity_bytes));
  }
  if (chart.planned_bytes > peak) {
    caption += fmt::format("; the plan's {} (dashed) are reached in other steps or in evaluation", short_bytes(chart.planned_bytes));
  }
  return caption + ".";
}

}  // namespace

std::string name_together(const std::vector<std::string>& devices) {
  constexpr size_t kNamed = 4;
  if (devices.size() > kNamed) return fmt::format("{} to {}, {} devices", devices.front(), devices.back(), devices.size());
  return fmt::format("{}", fmt::join(devices, ", "));
}

std::string memory_charts(const std::vector<MemoryChart>& charts, const std::string& introduction) {
  int64_t scale_bytes = 0;
  for (const MemoryChart& chart : charts) scale_bytes = std::max(scale_bytes, chart.largest_bytes());
  std::string html;
  std::vector<MemoryChart> different = group_equal(charts);
  for (MemoryChart& chart : different) {
    chart.scale_bytes = scale_bytes;
    const std::string drawn = memory_chart(chart);
    if (drawn.empty()) continue;
    html += "<h3>" + escape(chart.device) + "</h3>\n<figure>" + drawn + "<figcaption>" + escape(caption_of(chart)) + "</figcaption></figure>\n";
    html += folding("Who holds it at the peak", peak_holders(chart.timeline));
  }
  return html.empty() ? html : paragraph(introduction) + categories_legend(charts) + html;
}

}  // namespace vitrine::tools::html
