// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// Named parts of a training step. `recompute` is the second computation of activation checkpointing, within backward
/// and not part of it. `decide` checks the reduced gradients, decides whether the step is taken, clips them and updates
/// the loss scale. `checkpoint` is the copy of the training state to the host. `wait` is time in which a stream waited
/// for another stream, a peer or the host. `step` marks the start of a step on a compute stream and lasts no time.
enum class Phase : uint8_t {
  data,
  stage,
  scatter,
  preprocess,
  replicate,
  forward,
  gather,
  loss,
  scatter_grad,
  backward,
  recompute,
  reduce,
  decide,
  optimizer,
  cast,
  broadcast,
  evaluate,
  checkpoint,
  setup,
  wait,
  step,
};
inline constexpr int kPhaseCount = 21;
/// "forward", "scatter_grad", ...
const char* phase_name(Phase phase);

}  // namespace vitrine
