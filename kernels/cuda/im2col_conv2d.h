// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/conv2d.h"

/// Convolution by im2col and cuBLASLt, used when cuDNN is not built in or has no plan. The columns are stored in the
/// arena; if it does not hold all of them, the work is cut into ranges of output lines, in a fixed order.   throws
/// OutOfMemory with the bytes needed when not one line fits
namespace vitrine::cuda {

void im2col_conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias,
                           View y);
void im2col_conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w,
                                 View grad_x);
void im2col_conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y,
                                   View grad_w, GradMode mode);

}  // namespace vitrine::cuda
