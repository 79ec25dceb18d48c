// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <vitrine/runtime/trace/phase_table.h>

namespace vitrine {

/// One step of a device, for a chart. Spans are cut to the step, nest strictly, and are sorted outermost first. What
/// view_step() returns stays valid after the devices, the engine and the model are gone.
struct StepView {
  int64_t step = 0;
  int64_t begin_ns = 0, end_ns = 0;  // from its mark to the next one
  std::vector<SpanRecord> compute, copy, communication, host;
  std::shared_ptr<const std::set<std::string>> names;  // the strings that these spans point to
};

/// Returns nothing if the spans do not contain that step or its end.
std::optional<StepView> view_step(const DeviceSpans& spans, int64_t step);

}  // namespace vitrine
