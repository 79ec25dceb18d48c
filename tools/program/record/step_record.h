// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/parallel/engine.h"
#include "tools/program/text/json_text.h"

namespace vitrine::tools {

/// What happened over the steps of a run: loss scales, skipped steps, gradient norms and losses that were not finite.
/// Steps count from 0 over the whole run.
struct StepRecord {
  /// A step whose gradient was not finite.
  struct Overflow {
    int64_t step;
    double loss_scale;
    std::string where;
  };
  struct Change {
    int64_t step;  // the first one with the new scale
    double loss_scale;
  };

  Precision precision;
  int64_t first_step = 0;           // of the run: above 0 if it continues from a checkpoint
  int64_t steps = 0;                // added
  std::vector<Overflow> overflows;  // the steps that the loss scaler or clipping skipped
  std::vector<Change> scales;       // the first step's scale, then each change
  std::vector<double> norms;
  double reduction_error = 0;  // of the first step; NaN if gradients are reduced in f32
  // Steps that stopped training or had a loss that was not finite.
  int64_t non_finite = 0;
  int64_t first_non_finite = -1;
  std::string non_finite_where;  // in the first of them

  /// Adds the next step.
  void add(const StepResult& result);
  /// Adds the loss scale that the next step would have.
  void end(double loss_scale);

  int64_t skipped() const { return static_cast<int64_t>(overflows.size()); }
  /// The first step's loss scale, then each change; empty if losses are not scaled.
  std::vector<Change> loss_scales() const { return precision.loss_scaling.active() ? scales : std::vector<Change>{}; }
  /// A line or two for people; empty if nothing is scaled or clipped and all losses are finite.
  std::string report() const;
  /// null, or {"initial", "final", "skipped_steps": [{"step", "first_in", "loss_scale"}], "changes": [{"step",
  /// "loss_scale"}]}
  Json loss_scale_json() const;
  /// null, or the norm of each step's gradients before clipping.
  Json gradient_norms_json() const;
  /// null, or the relative error of the first step's reduction.
  Json reduction_error_json() const;
};

}  // namespace vitrine::tools
