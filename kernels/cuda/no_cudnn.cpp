// SPDX-License-Identifier: Apache-2.0
// Replaces the files cudnn_*.cpp in builds without cuDNN.
#include "kernels/cuda/cudnn_conv2d.h"
#include "kernels/recorded_operations.h"
#include "kernels/workspace.h"

namespace vitrine::cuda {

static constexpr const char* kNoCudnn = "cuDNN is not built in";

CudnnRun cudnn_conv2d_forward(ExecContext&, const Conv2dConfig&, ConstView, ConstView, ConstView, View) {
  return {kNoCudnn};
}
CudnnRun cudnn_conv2d_backward_data(ExecContext&, const Conv2dConfig&, ConstView, ConstView, View) {
  return {kNoCudnn};
}
CudnnRun cudnn_conv2d_backward_weight(ExecContext&, const Conv2dConfig&, ConstView, ConstView, View, GradMode) {
  return {kNoCudnn};
}
CudnnRun cudnn_conv2d_backward_weight_rounded(ExecContext&, const Conv2dConfig&, ConstView, ConstView, View, GradMode) {
  return {kNoCudnn};
}
WorkspaceNeed workspace_need(const RecordedOperations&, const WorkspaceTarget&, int64_t) {
  WorkspaceNeed need;
  need.unknown = kNoCudnn;  // products over columns use what there is
  return need;
}
std::optional<LibraryInfo> cudnn_library() { return std::nullopt; }

}  // namespace vitrine::cuda
