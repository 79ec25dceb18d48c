// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/memory/timeline.h"

namespace vitrine::tools::html {

/// What one device held over a step, measured or planned.
struct MemoryChart {
  std::string device;  // or several that are alike
  MemoryTimeline timeline;
  int64_t capacity_bytes = 0;  // 0: without limit
  int64_t planned_bytes = 0;   // the peak of the plan; 0: none to show
  int64_t scale_bytes = 0;     // the axis goes at least this far, so that devices can be compared

  /// How far the axis must go.
  int64_t largest_bytes() const;
};

/// Bytes by category, stacked, over the order of the changes: phases as bands above, lines for capacity and plan, every large block by its name.
/// Empty where the timeline has no changes.
std::string memory_chart(const MemoryChart& chart);

/// The largest blocks at the peak of the timeline, as a table.
std::string peak_holders(const MemoryTimeline& timeline, size_t count = 8);

}  // namespace vitrine::tools::html
