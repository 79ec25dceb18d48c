// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/epilogues.h"
#include "kernels/cuda/im2col_conv2d.h"
#include "tests/kernels/conv2d_paths.h"

namespace vitrine::test {
namespace {

void forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  ctx.dispatch(
      {"conv2d_forward", {x, w, bias}, {y}}, [] {}, [&] { cuda::im2col_conv2d_forward(ctx, config, x, w, bias, y); });
}
void backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  ctx.dispatch(
      {"conv2d_backward_data", {grad_y, w}, {grad_x}}, [] {},
      [&] { cuda::im2col_conv2d_backward_data(ctx, config, grad_y, w, grad_x); });
}
void backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                     View grad_bias, GradMode mode) {
  ctx.dispatch(
      {"conv2d_backward_weight", {x, grad_y}, {grad_w, grad_bias}}, [] {},
      [&] {
        cuda::im2col_conv2d_backward_weight(ctx, config, x, grad_y, grad_w, mode);
        if (grad_bias) cuda::column_sum(ctx, grad_y, grad_bias, mode);
      });
}

constexpr Conv2dPath kPaths[] = {kDispatched, {"im2col", &forward, &backward_data, &backward_weight}};

}  // namespace

std::span<const Conv2dPath> gpu_conv2d_paths() { return kPaths; }

}  // namespace vitrine::test
