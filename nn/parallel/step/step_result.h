// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <vitrine/nn/parallel/engine_config.h>

namespace vitrine {

/// Steps that may be skipped in a row before training counts as diverged.
inline constexpr int kMostSkipped = 32;

/// Results of one optimizer step or one evaluation batch, over all devices.
struct StepResult {
  double loss_sum = 0;
  int64_t valid = 0;    // targets that were not ignored
  int64_t correct = 0;  // valid targets that were predicted right
  int64_t top5 = 0;     // valid targets among the five largest outputs
  /// Of an evaluation in exact mode: loss_sum by leaf, zero for those of other processes. Added leaf by leaf, then in
  /// order, losses have the same bits on any processes.
  std::vector<double> leaf_losses = {};
  // Of a step:
  double loss_scale = 1.0;  // with which it was computed
  double gradient_norm =
      std::numeric_limits<double>::quiet_NaN();  // of the mean gradient before clipping; NaN where it is not checked
  /// In an engine's first step, when gradients are reduced in 16 bits: ||their sum - their sum in f32|| / ||their sum
  /// in f32||.
  double reduction_error = std::numeric_limits<double>::quiet_NaN();
  int stop_votes = 0;     // processes that had called vote_to_stop() when they issued the step
  bool skipped = false;   // no device changed its parameters, because the loss or gradient was not finite
  bool diverged = false;  // it stopped training: DivergedError was thrown, or is about to be
  /// The first thing that was not finite, if any: "the gradient of NAME" in backward's order; "the loss"; "the update";
  /// in a step that stopped training "parameter NAME", "the input" or "the output of NAME", in forward's order, where
  /// one of them is not finite.
  std::string overflow;
  /// Adds the loss and the counts of other targets.
  void add_totals(const StepResult& other);
  /// Mean loss over valid targets; NaN when there is none.
  double mean_loss() const;
};

/// What keeps values finite and the configuration allows, after "To continue, ".
std::string divergence_remedies(const EngineConfig& config);

}  // namespace vitrine
