// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_norm.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {  // layer_norm_cpu.cpp
VITRINE_CPU_LEVELS(layer_norm_forward, ExecContext&, float, ConstView, ConstView, ConstView, View, View);
VITRINE_CPU_LEVELS(layer_norm_backward_data, ExecContext&, ConstView, ConstView, ConstView, ConstView, View);
VITRINE_CPU_LEVELS(layer_norm_backward_weight, ExecContext&, ConstView, ConstView, ConstView, View, View, GradMode);
}  // namespace cpu

namespace cuda {  // layer_norm.cu
void layer_norm_forward(ExecContext& ctx, float eps, ConstView x, ConstView weight, ConstView bias, View y,
                        View statistics);
void layer_norm_backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                              View grad_x);
void layer_norm_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View grad_weight,
                                View grad_bias, GradMode mode);
}  // namespace cuda

namespace {

/// (C) of x (..., C).
Shape columns_of(const char* name, const ConstView& x) {
  if (x.shape.rank() < 1) throw ShapeError(fmt::format("{}: x has shape {}, expected (..., C)", name, x.shape.str()));
  return {x.shape[x.shape.rank() - 1]};
}

Shape statistics_shape(const ConstView& x, const Shape& columns) {
  return {columns[0] > 0 ? x.numel() / columns[0] : 0, 2};
}

}  // namespace

void layer_norm_forward(ExecContext& ctx, float eps, ConstView x, ConstView weight, ConstView bias, View y,
                        View statistics) {
  constexpr const char* kName = "layer_norm_forward";
  const Shape columns = columns_of(kName, x);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "weight", weight, columns, DType::f32, ctx);
  check::tensor(kName, "bias", bias, columns, DType::f32, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  if (statistics) check::tensor(kName, "statistics", statistics, statistics_shape(x, columns), DType::f32, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  check::no_overlap(kName, {"y", y}, {{"weight", weight}, {"bias", bias}, {"statistics", statistics}});
  check::no_overlap(kName, {"statistics", statistics}, {{"x", x}, {"weight", weight}, {"bias", bias}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, weight, bias}, {y, statistics}}, cpu::layer_norm_forward,
      VITRINE_IF_CUDA(cuda::layer_norm_forward), eps, x, weight, bias, y, statistics);
}

void layer_norm_backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                              View grad_x) {
  constexpr const char* kName = "layer_norm_backward_data";
  const Shape columns = columns_of(kName, x);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "grad_y", grad_y, x.shape, x.dtype, ctx);
  check::tensor(kName, "statistics", statistics, statistics_shape(x, columns), DType::f32, ctx);
  check::tensor(kName, "weight", weight, columns, DType::f32, ctx);
  check::tensor(kName, "grad_x", grad_x, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"grad_x", grad_x}, {{"grad_y", grad_y}});
  check::no_overlap(kName, {"grad_x", grad_x}, {{"x", x}, {"statistics", statistics}, {"weight", weight}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, grad_y, statistics, weight}, {grad_x}}, cpu::layer_norm_backward_data,
      VITRINE_IF_CUDA(cuda::layer_norm_backward_data), x, grad_y, statistics, weight, grad_x);
}

void layer_norm_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View grad_weight,
                                View grad_bias, GradMode mode) {
  constexpr const char* kName = "layer_norm_backward_weight";
  const Shape columns = columns_of(kName, x);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "grad_y", grad_y, x.shape, x.dtype, ctx);
  check::tensor(kName, "statistics", statistics, statistics_shape(x, columns), DType::f32, ctx);
  check::tensor(kName, "grad_weight", grad_weight, columns, DType::f32, ctx);
  check::tensor(kName, "grad_bias", grad_bias, columns, DType::f32, ctx);
  check::no_overlap(kName, {"grad_weight", grad_weight},
                    {{"x", x}, {"grad_y", grad_y}, {"statistics", statistics}, {"grad_bias", grad_bias}});
  check::no_overlap(kName, {"grad_bias", grad_bias}, {{"x", x}, {"grad_y", grad_y}, {"statistics", statistics}});
  if (x.numel() == 0) return add_nothing(ctx, mode, {grad_weight, grad_bias});
  run(ctx,
      {kName,
       {x, grad_y, statistics, content_of(grad_weight, mode), content_of(grad_bias, mode)},
       {grad_weight, grad_bias}},
      cpu::layer_norm_backward_weight, VITRINE_IF_CUDA(cuda::layer_norm_backward_weight), x, grad_y, statistics,
      grad_weight, grad_bias, mode);
}

}  // namespace vitrine
