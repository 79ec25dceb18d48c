// SPDX-License-Identifier: Apache-2.0
#include "runtime/phase.h"

namespace vitrine {

const char* phase_name(Phase phase) {
  static constexpr const char* kNames[kPhaseCount] = {
      "data", "stage",        "scatter",  "preprocess", "replicate", "forward", "gather",
      "loss", "scatter_grad", "backward", "recompute",  "reduce",    "decide",  "optimizer",
      "cast", "broadcast",    "evaluate", "checkpoint", "setup",     "wait",    "step"};
  return kNames[static_cast<int>(phase)];
}

}  // namespace vitrine
