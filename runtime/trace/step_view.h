// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <vitrine/runtime/trace/phase_table.h>

namespace vitrine {

/// One step of a device, for a chart. Spans are cut to it, nest strictly, and come outermost first.
struct StepView {
  int64_t step = 0;
  int64_t begin_ns = 0, end_ns = 0;  // from its mark to the next one
  std::vector<SpanRecord> compute, copy, communication, host;
};

/// Nothing where the spans have no such step, or no end of it.
std::optional<StepView> view_step(const DeviceSpans& spans, int64_t step);

}  // namespace vitrine
