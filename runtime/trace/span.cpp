// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/span.h"

#include <chrono>

namespace vitrine {

const char* phase_name(Phase phase) {
  static constexpr const char* kNames[kPhaseCount] = {
      "data", "stage",        "scatter",  "preprocess", "replicate", "forward", "gather",
      "loss", "scatter_grad", "backward", "recompute",  "reduce",    "decide",  "optimizer",
      "cast", "broadcast",    "evaluate", "checkpoint", "setup",     "wait",    "step"};
  return kNames[static_cast<int>(phase)];
}

int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace vitrine
