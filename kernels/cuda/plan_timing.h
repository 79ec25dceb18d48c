// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/plan_tuner.h"

namespace vitrine::cuda {

/// A plan that a library proposes.
struct TimedCandidate {
  std::string plan;  // TunedPlan::plan
  std::function<void()>
      run;  // queues the operation by it on the context's stream; throws CudaError if the library refuses
};

/// Times the candidates, which are in the library's order, until the search runs out of time, and puts the fastest into
/// the search's result; of plans that take the same time the earlier one. Returns its index, or -1 if none could run.
/// requires  ctx.plans().get<PlanTuner>().searches(), and an idle stream     ensures  an idle stream
/// throws    CudaError when the GPU itself has failed
int time_candidates(ExecContext& ctx, const std::string& operation, const std::vector<TimedCandidate>& candidates);

}  // namespace vitrine::cuda
