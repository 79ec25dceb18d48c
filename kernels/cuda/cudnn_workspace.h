// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/recorded_operations.h"

namespace vitrine::cuda {

/// Bytes of the arena that a convolution takes; -1: cuDNN has no plan for it.
struct CudnnConv2dNeed {
  int64_t best_bytes = -1;  // of the plan that cuDNN prefers
  int64_t bytes = -1;       // of the plan that it prefers among those that fit `allowed_bytes`
};
/// Asks cuDNN as the convolution itself will, with tensors aligned to 16 bytes.   throws  CudaError when cuDNN fails
CudnnConv2dNeed cudnn_conv2d_need(const RecordedConv2d& convolution, bool tf32, const CudnnTarget& target,
                                  int64_t allowed_bytes);

}  // namespace vitrine::cuda
