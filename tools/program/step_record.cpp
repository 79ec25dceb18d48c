// SPDX-License-Identifier: Apache-2.0
#include "tools/program/step_record.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/program/tables.h"

namespace vitrine::tools {

namespace {

constexpr size_t kOverflowsTold = 4;

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

void StepRecord::add(const StepResult& totals) {
  if (scales_.empty() || scales_.back().loss_scale != totals.loss_scale) scales_.push_back({steps_, totals.loss_scale});
  if (totals.diverged || (totals.valid > 0 && !std::isfinite(totals.loss_sum))) {
    if (++non_finite_ == 1) {
      first_non_finite_ = steps_;
      non_finite_where_ = totals.overflow;
    }
  }
  if (totals.skipped && !totals.diverged) overflows_.push_back({steps_, totals.loss_scale, totals.overflow});
  if (steps_ == 0) reduction_error_ = totals.reduction_error;
  if (precision_.checks()) norms_.push_back(totals.gradient_norm);
  ++steps_;
}

void StepRecord::end(double loss_scale) {
  if (!scales_.empty() && scales_.back().loss_scale != loss_scale) scales_.push_back({steps_, loss_scale});
}

std::string StepRecord::report() const {
  if (steps_ == 0) return {};
  std::string text;
  if (non_finite_ > 0) {
    text += fmt::format("Not finite: {} of {} steps, from step {} on; first {}\n", format_count(non_finite_), format_count(steps_),
                        first_non_finite_ + 1, non_finite_where_);
  }
  if (!std::isnan(reduction_error_)) {
    text += fmt::format("Reduction in {}: relative error {:.1e} against f32, measured in the first step\n", dtype_name(precision_.reduce_dtype),
                        reduction_error_);
  }
  if (!precision_.checks()) return text;
  if (precision_.loss_scaling.active()) {
    text += fmt::format("Loss scale: {}", scales_.front().loss_scale);
    if (scales_.size() > 1) {
      text += fmt::format(" at the start, {} at the end, changed {} time{}", scales_.back().loss_scale, scales_.size() - 1,
                          scales_.size() == 2 ? "" : "s");
    }
    text += "; ";
  }
  if (overflows_.empty()) {
    text += "no step was skipped";
  } else {
    text += fmt::format("{} of {} steps skipped, because the gradient was not finite, first in:", format_count(skipped()), format_count(steps_));
    for (size_t i = 0; i < std::min(kOverflowsTold, overflows_.size()); ++i) {
      const Overflow& o = overflows_[i];
      text += fmt::format("\n  step {}, scale {}: {}", o.step + 1, o.loss_scale, o.where);
    }
    if (overflows_.size() > kOverflowsTold)
      text += fmt::format("\n  and {} more", format_count(static_cast<int64_t>(overflows_.size() - kOverflowsTold)));
  }
  if (precision_.clip_norm > 0.0) {
    const auto clipped = std::count_if(norms_.begin(), norms_.end(), [&](double norm) { return std::isfinite(norm) && norm > precision_.clip_norm; });
    double largest = 0.0;
    for (const double norm : norms_) largest = std::isfinite(norm) ? std::max(largest, norm) : largest;
    text += fmt::format("\nGradient norm: largest {:.3g}; {} of {} steps were clipped to {}", largest, clipped, format_count(steps_),
                        precision_.clip_norm);
  }
  return text + "\n";
}

Json StepRecord::loss_scale_json() const {
  if (!precision_.loss_scaling.active() || scales_.empty()) return {};
  Json json;
  json["initial"] = scales_.front().loss_scale;
  json["final"] = scales_.back().loss_scale;
  json["skipped_steps"] = Json::array();
  for (const Overflow& o : overflows_) json["skipped_steps"].push_back({{"step", o.step}, {"first_in", o.where}, {"loss_scale", o.loss_scale}});
  json["changes"] = Json::array();
  for (size_t i = 1; i < scales_.size(); ++i) json["changes"].push_back({{"step", scales_[i].step}, {"loss_scale", scales_[i].loss_scale}});
  return json;
}

Json StepRecord::reduction_error_json() const { return steps_ == 0 ? Json() : number_or_null(reduction_error_); }

Json StepRecord::gradient_norms_json() const {
  if (!precision_.checks()) return {};
  Json json = Json::array();
  for (const double norm : norms_) json.push_back(number_or_null(norm));
  return json;
}

}  // namespace vitrine::tools
