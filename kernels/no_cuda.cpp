// SPDX-License-Identifier: Apache-2.0
// Replaces the CUDA sources in builds without CUDA. Operations do not refer to their CUDA implementations there, see run.h.
#include "kernels/conv2d_choice.h"
#include "kernels/cuda/workspace.h"
#include "kernels/libraries.h"

namespace vitrine {

std::vector<Conv2dChoice> conv2d_choices(ExecContext&) { return {}; }

namespace cuda {
std::vector<LibraryInfo> kernel_libraries() { return {}; }
WorkspaceNeed workspace_need(const RecordedOperations&, const WorkspaceTarget& target, int64_t) {
  WorkspaceNeed need;
  need.unknown = target.device.str() + " is not in this machine";
  return need;
}
}  // namespace cuda

}  // namespace vitrine
