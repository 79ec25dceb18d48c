// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/onednn.h"

/// Products and convolutions of f32 in a workspace that the caller provides: oneDNN's where it has an implementation
/// that fits there, otherwise the portable ones.
namespace vitrine::cpu::f32 {

/// Rows of c are c_stride elements apart.
void gemm(ExecContext& ctx, const View& workspace, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c,
          int64_t c_stride, GradMode mode);

void conv2d(ExecContext& ctx, const View& workspace, const Conv2dCall& call);
/// Bytes of workspace with which a pass runs at full speed.
int64_t conv2d_bytes(ExecContext& ctx, const RecordedConv2d& convolution);

}  // namespace vitrine::cpu::f32

namespace vitrine::cpu {

/// Implements vitrine::gemm.
void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode);

}  // namespace vitrine::cpu
