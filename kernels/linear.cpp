// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "kernels/recorded_operations.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {
namespace {

void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  if (onednn::computes(x.dtype) && onednn::linear_forward(ctx, ctx.workspace(), x, w, bias, relu, y)) return;
  if (x.dtype == DType::f32) {
    portable::linear_forward(x, w, bias, relu, y);
  } else {
    widened::linear_forward(ctx, x, w, bias, relu, y);
  }
}

void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x) {
  cpu::gemm(ctx, false, false, grad_y, w, grad_x, GradMode::overwrite);
}

void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                            GradMode mode) {
  cpu::gemm(ctx, true, false, grad_y, x, grad_w, mode);
  if (grad_bias) portable::column_sums(grad_y, grad_bias.as<float>(), mode);
}

}  // namespace
}  // namespace cpu

namespace cuda {  // products_cuda.cpp
void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y);
void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x);
void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                            GradMode mode);
}  // namespace cuda

namespace {

/// throws ShapeError unless `activation`, x (N, I) or grad_y (N, O), fits the weight w.
void check_fits(const char* name, const char* argument, const ConstView& activation, const Shape& w, int64_t features,
                bool is_input) {
  check::rank(name, argument, activation, 2, is_input ? "(N, I)" : "(N, O)");
  if (activation.shape[1] == features) return;
  throw ShapeError(fmt::format("{}: {} has shape {} but weight {} needs {} of shape (N, {})", name, argument,
                               activation.shape.str(), w.str(), argument, features));
}

void check_gradient_shapes(const char* name, const ConstView& x, const ConstView& grad_y) {
  check::rank(name, "x", x, 2, "(N, I)");
  check::rank(name, "grad_y", grad_y, 2, "(N, O)");
  if (x.shape[0] == grad_y.shape[0]) return;
  throw ShapeError(fmt::format("{}: grad_y has shape {} but x {} needs grad_y of shape ({}, O)", name,
                               grad_y.shape.str(), x.shape.str(), x.shape[0]));
}

}  // namespace

void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  constexpr const char* kName = "linear_forward";
  check::rank(kName, "w", w, 2, "(O, I)");
  check_fits(kName, "x", x, w.shape, w.shape[1], true);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "w", w, x.dtype, ctx);
  if (bias) check::tensor(kName, "bias", bias, {w.shape[0]}, x.dtype, ctx);
  check::tensor(kName, "y", y, {x.shape[0], w.shape[0]}, x.dtype, ctx);
  check::no_overlap(kName, {"y", y}, {{"x", x}, {"w", w}, {"bias", bias}});
  if (y.numel() == 0) return;
  record(ctx, {.m = x.shape[0],
               .n = w.shape[0],
               .k = x.shape[1],
               .dtype = x.dtype,
               .c_dtype = y.dtype,
               .transpose_b = true,
               .bias = static_cast<bool>(bias),
               .relu = relu});
  run(ctx, {kName, {x, w, bias}, {y}}, cpu::linear_forward, VITRINE_IF_CUDA(cuda::linear_forward), x, w, bias, relu, y);
}

void linear_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x) {
  constexpr const char* kName = "linear_backward_data";
  check::rank(kName, "w", w, 2, "(O, I)");
  check_fits(kName, "grad_y", grad_y, w.shape, w.shape[0], false);
  check::tensor(kName, "grad_y", grad_y, ctx);
  check::tensor(kName, "w", w, grad_y.dtype, ctx);
  check::tensor(kName, "grad_x", grad_x, {grad_y.shape[0], w.shape[1]}, grad_y.dtype, ctx);
  check::no_overlap(kName, {"grad_x", grad_x}, {{"grad_y", grad_y}, {"w", w}});
  if (grad_x.numel() == 0) return;
  record(ctx, {.m = grad_y.shape[0], .n = w.shape[1], .k = w.shape[0], .dtype = grad_y.dtype, .c_dtype = grad_x.dtype});
  run(ctx, {kName, {grad_y, w}, {grad_x}}, cpu::linear_backward_data, VITRINE_IF_CUDA(cuda::linear_backward_data),
      grad_y, w, grad_x);
}

void linear_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                            GradMode mode) {
  constexpr const char* kName = "linear_backward_weight";
  check_gradient_shapes(kName, x, grad_y);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "grad_y", grad_y, x.dtype, ctx);
  check::tensor(kName, "grad_w", grad_w, {grad_y.shape[1], x.shape[1]}, DType::f32, ctx);
  if (grad_bias) check::tensor(kName, "grad_bias", grad_bias, {grad_y.shape[1]}, DType::f32, ctx);
  check::no_overlap(kName, {"grad_w", grad_w}, {{"x", x}, {"grad_y", grad_y}, {"grad_bias", grad_bias}});
  check::no_overlap(kName, {"grad_bias", grad_bias}, {{"x", x}, {"grad_y", grad_y}});
  if (x.shape[0] == 0) return add_nothing(ctx, mode, {grad_w, grad_bias});
  if (grad_w.numel() == 0) return;
  const bool accumulate = mode == GradMode::accumulate;
  record(ctx, {.m = grad_w.shape[0],
               .n = grad_w.shape[1],
               .k = x.shape[0],
               .dtype = x.dtype,
               .c_dtype = DType::f32,
               .transpose_a = true,
               .accumulate = accumulate,
               .row_sums = grad_bias && !accumulate});
  run(ctx, {kName, {x, grad_y, content_of(grad_w, mode), content_of(grad_bias, mode)}, {grad_w, grad_bias}},
      cpu::linear_backward_weight, VITRINE_IF_CUDA(cuda::linear_backward_weight), x, grad_y, grad_w, grad_bias, mode);
}

}  // namespace vitrine
