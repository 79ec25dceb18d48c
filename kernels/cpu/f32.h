// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/onednn.h"

/// Products and convolutions of f32 in a workspace that the caller provides: oneDNN's where it has an implementation
/// that fits there, otherwise the portable ones.
namespace vitrine::cpu::f32 {

/// Rows of c are c_stride elements apart.
void gemm(ExecContext& ctx, const View& workspace, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c,
          int64_t c_stride, GradMode mode);

void conv2d_forward(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x, ConstView w,
                    ConstView bias, View y);
void conv2d_backward_data(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView grad_y,
                          ConstView w, View grad_x);
void conv2d_backward_weight(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x,
                            ConstView grad_y, View grad_w, View grad_bias, GradMode mode);

/// Bytes of workspace with which a pass runs at full speed.
int64_t conv2d_bytes(ExecContext& ctx, Conv2dPass pass, const Conv2dConfig& config, const Shape& x, const Shape& w,
                     bool with_bias);

}  // namespace vitrine::cpu::f32

namespace vitrine::cpu {

/// Implements vitrine::gemm.
void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode);

}  // namespace vitrine::cpu
