// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>

#include "kernels/cuda/cudnn_graph.h"

namespace vitrine::cuda {

enum class Conv2dPass { forward, backward_data, backward_weight };

/// Everything that a plan for a convolution depends on.
struct CudnnConv2d {
  Conv2dPass pass = Conv2dPass::forward;
  DType dtype = DType::f32;     // of all tensors but the weights' gradient; accumulates in f32
  DType dw_dtype = DType::f32;  // of the weights' gradient: f32, or as the others
  std::array<int64_t, 4> x{}, w{}, y{};
  int64_t stride = 1, pad = 0;
  bool bias = false, relu = false;  // of the forward pass; cuDNN has no plans for ReLU without a bias
  bool accumulate = false;          // of the weights' pass: what is there is added to
  bool tf32 = false;
  int64_t alignment = 16;  // bytes, of every tensor
  int64_t workspace_bytes = 0;
  auto operator<=>(const CudnnConv2d&) const = default;
};

/// The tensors' names in the plan. In the backward passes x, w and y stand for their gradients where these are meant.
struct CudnnConv2dIds {
  static constexpr int64_t x = 1, w = 2, y = 3, bias = 4;
};

CudnnChoice choose_conv2d_plan(const CudnnConv2d& convolution, const CudnnTarget& target);

}  // namespace vitrine::cuda
