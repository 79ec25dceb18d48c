// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "kernels/conv2d.h"

namespace vitrine::test {

/// One implementation of convolution.
struct Conv2dPath {
  const char* name;
  decltype(&vitrine::conv2d_forward) forward;
  decltype(&vitrine::conv2d_backward_data) backward_data;
  decltype(&vitrine::conv2d_backward_weight) backward_weight;
};
inline constexpr Conv2dPath kDispatched = {"dispatched", &conv2d_forward, &conv2d_backward_data,
                                           &conv2d_backward_weight};

/// The operation itself and im2col, which cuDNN otherwise hides. Empty in builds without CUDA.
std::span<const Conv2dPath> gpu_conv2d_paths();

}  // namespace vitrine::test
