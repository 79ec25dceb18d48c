// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/portable.h"
#include "kernels/gemm.h"

/// Products and convolutions of f16 and bf16 on CPUs without instructions for them: pieces of the arguments are widened
/// to f32 in ctx.workspace(), computed in f32, and each complete result is rounded once. Contracts as of the
/// operations.
namespace vitrine::cpu::widened {

/// Use at most gemm_bytes() of the workspace, so that a larger one gives the same bits; throw OutOfMemory when it is
/// smaller than kWidenedGemmWorkspaceBytes.
void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode);
void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y);

/// Computes some images at a time, as many as fit beside the weights and into the caches; with more workspace than
/// conv2d_bytes() has, the same number. throws OutOfMemory when not even one fits into the workspace.
void conv2d(ExecContext& ctx, const Conv2dCall& call);
/// Bytes of workspace with which one image can be computed, and with which the pass runs at full speed.
portable::Conv2dBytes conv2d_bytes(ExecContext& ctx, const RecordedConv2d& convolution);
/// Bytes of workspace beyond which a product does not use more.
int64_t gemm_bytes(const RecordedProduct& product);
/// throw OutOfMemory as the operations do in ctx's workspace.
void require_workspace(const ExecContext& ctx, const RecordedConv2d& convolution);
void require_workspace(const ExecContext& ctx, const RecordedProduct& product);

}  // namespace vitrine::cpu::widened
