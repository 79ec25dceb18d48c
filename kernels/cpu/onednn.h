// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "kernels/conv2d_call.h"
#include "kernels/libraries.h"
#include "runtime/reason.h"

/// Matrix products and convolutions by oneDNN, in the dtypes that it computes with. Primitives are created once per
/// shape and kept in ctx.plans(); packed weights and scratch are taken from `workspace`. A function returns false and
/// does nothing when oneDNN is not built in (no_onednn.cpp), has no fast implementation of the shape, or needs more
/// workspace.
namespace vitrine::cpu::onednn {

/// Version and use of oneDNN, if built in.
std::optional<LibraryInfo> library();

/// True for f32, and for bf16 on CPUs with AMX and on AMD's with AVX-512 BF16 (Zen 4), where steps in bf16 take half
/// the time of steps on tensors widened to f32. On Intel's with AVX-512 BF16 alone they take up to twice as long
/// (bench/results/notes-2026-11-23.md).
bool computes(DType dtype);

/// Rows of c are c_stride elements apart. If a is not transposed, its rows are a_stride elements apart (0: k).
struct Product : RecordedProduct {
  int64_t c_stride = 0, a_stride = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): a false positive of clang-tidy 14
  auto operator<=>(const Product&) const = default;
};

/// True when oneDNN has a fast implementation of the product that fits into the workspace. Only with oneDNN.
bool takes(ExecContext& ctx, const View& workspace, const Product& product);

/// True when gemm() declines: below AVX-512, oneDNN multiplies two untransposed matrices at 0.5 to 1 times the speed of
/// Eigen at the shapes of linear layers. Only with oneDNN.
bool eigen_is_faster(bool transpose_a, bool transpose_b);

/// Rows of c, which may be f32 when a and b are bf16, are c_stride elements apart.
bool gemm(ExecContext& ctx, const View& workspace, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c,
          int64_t c_stride, GradMode mode);
bool linear_forward(ExecContext& ctx, const View& workspace, ConstView x, ConstView w, ConstView bias, bool relu,
                    View y);

bool conv2d(ExecContext& ctx, const View& workspace, const Conv2dCall& call);

/// vitrine::winograd_refusal().
Reason winograd_refusal();
/// Computes a pass by Winograd's algorithm (Lavin & Gray 2015, tiles of 4 x 4 outputs) in ctx.workspace() and returns
/// an empty reason; or does nothing and returns why. The shapes and the workspace decide: Winograd is for f32, 3 x 3
/// windows with stride 1 and shapes where it is faster than conv2d(). Images are copied to the layout that oneDNN's
/// implementation takes, some at a time.
Reason winograd_conv2d(ExecContext& ctx, const Conv2dCall& call);
/// Bytes of workspace that it needs; -1 when it declines whatever the workspace.
int64_t winograd_bytes(ExecContext& ctx, const RecordedConv2d& convolution);

/// Bytes of workspace that a product takes, of `allowed_bytes`; -1 when there is no fast implementation, or gemm()
/// declines.
int64_t product_bytes(ExecContext& ctx, const RecordedProduct& product, int64_t allowed_bytes);
/// Bytes of workspace that a pass needs; -1 when there is no fast implementation.
int64_t conv2d_bytes(ExecContext& ctx, const RecordedConv2d& convolution);

}  // namespace vitrine::cpu::onednn
