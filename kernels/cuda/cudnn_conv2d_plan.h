// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/recorded_operations.h"

namespace vitrine::cuda {

/// Of a shape with four dimensions.
inline std::array<int64_t, 4> sizes_of(const Shape& shape) { return {shape[0], shape[1], shape[2], shape[3]}; }

/// Everything that a plan for a convolution depends on.
struct CudnnConv2d {
  Conv2dPass pass = Conv2dPass::forward;
  DType dtype = DType::f32;     // of all tensors except the gradient of the weights; accumulates in f32
  DType dw_dtype = DType::f32;  // of the gradient of the weights: f32, or as the others
  std::array<int64_t, 4> x{}, w{}, y{};
  int64_t stride = 1, pad = 0;
  bool bias = false, relu = false;  // of the forward pass; cuDNN has no plans for ReLU without a bias
  bool accumulate = false;          // of the weight pass: adds to the content
  bool tf32 = false;
  int64_t alignment = 16;  // bytes, of every tensor
  int64_t workspace_bytes = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): a false positive of clang-tidy 14
  auto operator<=>(const CudnnConv2d&) const = default;
};

/// Ids of the tensors in the plan. In backward passes, x, w and y also stand for their gradients.
struct CudnnConv2dIds {
  static constexpr int64_t x = 1, w = 2, y = 3, bias = 4;
};

/// Pieces of the arena begin and end at multiples of it.
inline constexpr int64_t kCudnnArenaAlignment = 256;
inline int64_t cudnn_arena_piece(int64_t bytes) {
  return (bytes + kCudnnArenaAlignment - 1) / kCudnnArenaAlignment * kCudnnArenaAlignment;
}

CudnnChoice choose_conv2d_plan(const CudnnConv2d& convolution, const CudnnTarget& target);
/// See find_cudnn_plans() and restore_cudnn_plan().
CudnnChoices find_conv2d_plans(const CudnnConv2d& convolution, const CudnnTarget& target, int most);
CudnnChoice restore_conv2d_plan(const CudnnConv2d& convolution, const CudnnTarget& target, const std::string& text);

/// "cudnn forward x 64 227 227 3 w 64 11 11 3 stride 4 pad 2, bf16, bias, ReLU, workspace 33554432": all that a plan
/// depends on except the GPU and the alignment.
std::string conv2d_signature(const CudnnConv2d& convolution);

/// Bytes of the arena that a convolution takes; -1: cuDNN has no plan for it.
struct CudnnConv2dNeed {
  int64_t best_bytes = -1;  // of the plan that cuDNN prefers
  int64_t bytes = -1;       // of the plan that it prefers among those that fit `allowed_bytes`
};
/// Asks cuDNN as the convolution itself will, with tensors aligned to 16 bytes.   throws  CudaError when cuDNN fails
CudnnConv2dNeed cudnn_conv2d_need(const RecordedConv2d& convolution, bool tf32, const CudnnTarget& target,
                                  int64_t allowed_bytes);

}  // namespace vitrine::cuda
