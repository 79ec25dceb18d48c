// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "kernels/conv2d.h"
#include "kernels/libraries.h"
#include "runtime/reason.h"

/// Convolution by cuDNN's graph API. Each function queues the operation, or returns why it did not: cuDNN is not built
/// in (no_cudnn.cpp), or has no plan that is deterministic, keeps f32 (unless ctx.tf32()) and fits the arena. Of
/// several, cuDNN's heuristics choose, or the context's tuned plans (kernels/tuned_plans.h). The choice is kept in
/// ctx.plans(). throws CudaError when cuDNN fails
namespace vitrine::cuda {

struct CudnnRun {
  Reason refusal = {};       // why it did not run
  bool tensor_cores = true;  // false: of f16 or bf16, by a plan without them
};

/// bias may be empty.
CudnnRun cudnn_conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias,
                              View y);
CudnnRun cudnn_conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w,
                                    View grad_x);
/// The gradient of the weights only.
CudnnRun cudnn_conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y,
                                      View grad_w, GradMode mode);
/// The same through a gradient rounded to x's dtype, f16 or bf16, at the end of the arena: for these cuDNN has plans.
CudnnRun cudnn_conv2d_backward_weight_rounded(ExecContext& ctx, const Conv2dConfig& config, ConstView x,
                                              ConstView grad_y, View grad_w, GradMode mode);

/// Version and use of cuDNN, if built in.
std::optional<LibraryInfo> cudnn_library();

}  // namespace vitrine::cuda
