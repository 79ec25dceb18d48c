// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

struct Pool2dConfig {
  int64_t window = 2;
  int64_t stride = 2;
  int64_t pad = 0;  // at most window / 2
};

/// (N, P, Q, C) for x (N, H, W, C);  P = floor((H + 2*pad - window) / stride) + 1, Q likewise. throws ShapeError.
Shape pool2d_output_shape(const Pool2dConfig& config, const Shape& x);

/// Maximum over windows; padding never wins; the first of equals (row-major) wins and NaN wins over all, as in PyTorch.
/// Every pool: x, y and their gradients all f32, f16 or bf16, computed in f32.
///   x (N, H, W, C)   y (N, P, Q, C)   indices (N, P, Q, C) u8 or empty: position r * window + s of the maximum in its window
/// aliasing  none      determinism  yes      throws  ShapeError, DtypeError, DeviceError, UnsupportedError (window > 16)
void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices);

/// grad_x (N, H, W, C), overwritten: each grad_y goes to its maximum; overlapping windows add up.   determinism  yes
void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x);

/// Mean over windows, padding counted (PyTorch's count_include_pad default).
void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y);
void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x);

/// Mean over the windows [floor(i*H/P), ceil((i+1)*H/P)) that make y (N, P, Q, C) of x (N, H, W, C), as in PyTorch.
void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y);
void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x);

}  // namespace vitrine
