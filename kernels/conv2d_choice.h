// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

/// The implementation that a context chose for a convolution, and why it is not the preferred one.
struct Conv2dChoice {
  std::string
      operation;  // "conv2d_forward x (64, 227, 227, 3) w (64, 11, 11, 3) stride 4 pad 2, f16"; f32 is not named
  std::string implementation;  // "cuDNN", "cuDNN, gradient rounded to f16" or "im2col + cuBLASLt"; of a CPU device
                               // "Winograd" or "direct convolution"
  Reason reason;               // why it is not cuDNN's f32 gradient or plan, or not Winograd; empty when it is
};

/// The choices for all convolutions that a GPU's context, or a CPU's that allows Winograd's algorithm, has run, in the
/// order of their first run. Empty on others.
/// requires  of a CPU device: the stream is idle
std::vector<Conv2dChoice> conv2d_choices(ExecContext& ctx);

/// Why no convolution on a CPU device of this machine can run by Winograd's algorithm; empty: those can that
/// conv2d_choices() lists.
Reason winograd_refusal();

}  // namespace vitrine
