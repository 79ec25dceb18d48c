// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/step_record.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tools/program/text/tables.h"

namespace vitrine::tools {

namespace {

constexpr size_t kOverflowsShown = 4;

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

void StepRecord::add(const StepResult& result) {
  const int64_t step = first_step + steps;
  if (scales.empty() || scales.back().loss_scale != result.loss_scale) scales.push_back({step, result.loss_scale});
  if (result.diverged || (result.valid > 0 && !std::isfinite(result.loss_sum))) {
    if (++non_finite == 1) {
      first_non_finite = step;
      non_finite_where = result.overflow;
    }
  }
  if (result.skipped && !result.diverged) overflows.push_back({step, result.loss_scale, result.overflow});
  if (steps == 0) reduction_error = result.reduction_error;
  if (precision.checks()) norms.push_back(result.gradient_norm);
  ++steps;
}

void StepRecord::end(double loss_scale) {
  if (!scales.empty() && scales.back().loss_scale != loss_scale) scales.push_back({first_step + steps, loss_scale});
}

std::string StepRecord::report() const {
  if (steps == 0) return {};
  std::string text;
  if (non_finite > 0) {
    text += fmt::format("Not finite: {} of {} steps, from step {} on; first {}\n", format_count(non_finite),
                        format_count(steps), first_non_finite + 1, non_finite_where);
  }
  if (!std::isnan(reduction_error)) {
    text += fmt::format("Reduction in {}: relative error {:.1e} against f32, measured in the first step\n",
                        dtype_name(precision.reduce_dtype), reduction_error);
  }
  if (!precision.checks()) return text;
  if (precision.loss_scaling.active()) {
    text += fmt::format("Loss scale: {}", scales.front().loss_scale);
    if (scales.size() > 1) {
      text += fmt::format(" at the start, {} at the end, changed {} time{}", scales.back().loss_scale,
                          scales.size() - 1, scales.size() == 2 ? "" : "s");
    }
    text += "; ";
  }
  if (overflows.empty()) {
    text += "no step was skipped";
  } else {
    text +=
        fmt::format("{} of {} steps skipped, because the gradient was not finite, first in:", format_count(skipped()),
                    format_count(steps));
    for (size_t i = 0; i < std::min(kOverflowsShown, overflows.size()); ++i) {
      const Overflow& o = overflows[i];
      text += fmt::format("\n  step {}, scale {}: {}", o.step + 1, o.loss_scale, o.where);
    }
    if (overflows.size() > kOverflowsShown)
      text += fmt::format("\n  and {} more", format_count(static_cast<int64_t>(overflows.size() - kOverflowsShown)));
  }
  if (precision.clip_norm > 0.0) {
    const auto clipped = std::count_if(norms.begin(), norms.end(),
                                       [&](double norm) { return std::isfinite(norm) && norm > precision.clip_norm; });
    double largest = 0.0;
    for (const double norm : norms) largest = std::isfinite(norm) ? std::max(largest, norm) : largest;
    text += fmt::format("\nGradient norm: largest {:.3g}; {} of {} steps were clipped to {}", largest, clipped,
                        format_count(steps), precision.clip_norm);
  }
  return text + "\n";
}

Json StepRecord::loss_scale_json() const {
  if (!precision.loss_scaling.active() || scales.empty()) return {};
  Json json;
  json["initial"] = scales.front().loss_scale;
  json["final"] = scales.back().loss_scale;
  json["skipped_steps"] = Json::array();
  for (const Overflow& o : overflows)
    json["skipped_steps"].push_back({{"step", o.step}, {"first_in", o.where}, {"loss_scale", o.loss_scale}});
  json["changes"] = Json::array();
  for (size_t i = 1; i < scales.size(); ++i)
    json["changes"].push_back({{"step", scales[i].step}, {"loss_scale", scales[i].loss_scale}});
  return json;
}

Json StepRecord::reduction_error_json() const { return steps == 0 ? Json() : number_or_null(reduction_error); }

Json StepRecord::gradient_norms_json() const {
  if (!precision.checks()) return {};
  Json json = Json::array();
  for (const double norm : norms) json.push_back(number_or_null(norm));
  return json;
}

}  // namespace vitrine::tools
