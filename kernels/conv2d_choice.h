// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

/// The implementation that a GPU's context chose for a convolution, and why it is not the preferred one.
struct Conv2dChoice {
  std::string
      operation;  // "conv2d_forward x (64, 227, 227, 3) w (64, 11, 11, 3) stride 4 pad 2, f16"; f32 is not named
  std::string implementation;  // "cuDNN", "cuDNN, gradient rounded to f16" or "im2col + cuBLASLt"
  Reason reason;               // why it is not cuDNN's f32 gradient or plan; empty when it is
};

/// The choices for all convolutions that the context has run, in the order of their first run. Empty on other backends.
std::vector<Conv2dChoice> conv2d_choices(ExecContext& ctx);

}  // namespace vitrine
