// SPDX-License-Identifier: Apache-2.0
// Replaces the CUDA sources in builds without CUDA. Operations do not refer to their CUDA implementations there, see
// run.h.
#include "kernels/libraries.h"
#include "kernels/recorded_operations.h"
#include "kernels/tuned_plans.h"
#include "kernels/workspace.h"
#include "runtime/error.h"

namespace vitrine {

TuneResult tune_plans(ExecContext& ctx, const std::vector<std::string>&, const TunedPlans&, int64_t, double, Setting) {
  throw UnsupportedError("tune_plans: " + ctx.device().str() + " is not a GPU, so its libraries have no plans to time");
}

namespace cuda {
std::vector<LibraryInfo> kernel_libraries() { return {}; }
WorkspaceNeed workspace_need(const RecordedOperations&, const WorkspaceTarget& target, int64_t) {
  WorkspaceNeed need;
  need.unknown = target.device.str() + " is not in this machine";
  return need;
}
}  // namespace cuda

}  // namespace vitrine
