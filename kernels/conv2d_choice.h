// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Which implementation a GPU's context runs a convolution with, and why not the preferred one.
struct Conv2dChoice {
  std::string operation;       // "conv2d_forward x (64, 227, 227, 3) w (64, 11, 11, 3) stride 4 pad 2, f16"; f32 goes without saying
  std::string implementation;  // "cuDNN", "cuDNN, gradient rounded to f16" or "im2col + cuBLASLt"
  std::string reason;          // why not the first of these; empty when it is
};

/// Those of the convolutions that the context has run so far, in order of their first run. Empty on other backends.
std::vector<Conv2dChoice> conv2d_choices(ExecContext& ctx);

}  // namespace vitrine
