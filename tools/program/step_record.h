// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/parallel/engine.h"
#include "tools/program/json_report.h"

namespace vitrine::tools {

/// What the steps of a run tell of loss scaling, clipping, and losses that are not finite.
class StepRecord {
 public:
  struct Change {
    int64_t step;  // the first with the new scale
    double loss_scale;
  };

  explicit StepRecord(const Precision& precision) : precision_(precision) {}
  /// Steps in order.
  void add(const StepResult& totals);
  /// The scale that the next step would have.
  void end(double loss_scale);

  /// The first step's loss scale, then each change; empty where losses are not scaled.
  std::vector<Change> loss_scales() const { return precision_.loss_scaling.active() ? scales_ : std::vector<Change>{}; }
  /// Steps that the loss scaler or clipping skipped.
  int64_t skipped() const { return static_cast<int64_t>(overflows_.size()); }
  /// Steps that stopped training or had a loss that was not finite, and the first of them, from 0.
  int64_t non_finite() const { return non_finite_; }
  int64_t first_non_finite() const { return first_non_finite_; }
  /// A line or two for people; empty where nothing is scaled or clipped and all losses are finite.
  std::string report() const;
  /// null, or {"initial", "final", "skipped_steps": [{"step", "first_in", "loss_scale"}], "changes": [{"step", "loss_scale"}]}
  Json loss_scale_json() const;
  /// null, or the norms of the steps' gradients before clipping.
  Json gradient_norms_json() const;
  /// null, or the relative error of the first step's reduction.
  Json reduction_error_json() const;

 private:
  struct Overflow {
    int64_t step;  // from 0
    double loss_scale;
    std::string where;
  };
  Precision precision_;
  std::vector<Overflow> overflows_;
  std::vector<Change> scales_;  // the first step's, then each change
  std::vector<double> norms_;
  double reduction_error_ = 0;  // of the first step; NaN where gradients travel in f32
  int64_t steps_ = 0;
  int64_t non_finite_ = 0, first_non_finite_ = -1;
  std::string non_finite_where_;  // in the first of them
};

}  // namespace vitrine::tools
