// SPDX-License-Identifier: Apache-2.0
#include "kernels/batch_norm.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu::batch_norm {  // batch_norm_cpu.cpp
VITRINE_CPU_LEVELS(moments, ExecContext&, ConstView, View);
VITRINE_CPU_LEVELS(sums, ExecContext&, int64_t, ConstView, View);
VITRINE_CPU_LEVELS(recenter, ExecContext&, int64_t, int64_t, ConstView, View);
VITRINE_CPU_LEVELS(statistics, ExecContext&, BatchNormConfig, int64_t, ConstView, View, View, View);
VITRINE_CPU_LEVELS(running, ExecContext&, BatchNormConfig, ConstView, ConstView, View);
VITRINE_CPU_LEVELS(forward, ExecContext&, BatchNormConfig, ConstView, ConstView, ConstView, ConstView, View);
VITRINE_CPU_LEVELS(backward_sums, ExecContext&, ConstView, ConstView, ConstView, View, View, View, GradMode);
VITRINE_CPU_LEVELS(backward_data, ExecContext&, ConstView, ConstView, ConstView, ConstView, ConstView, int64_t, View);
}  // namespace cpu::batch_norm

namespace cuda::batch_norm {  // batch_norm.cu
void moments(ExecContext& ctx, ConstView x, View moments);
void sums(ExecContext& ctx, int64_t rows, ConstView moments, View sums);
void recenter(ExecContext& ctx, int64_t rows, int64_t total_rows, ConstView sums, View moments);
void statistics(ExecContext& ctx, BatchNormConfig config, int64_t total_rows, ConstView moments, View statistics,
                View running_mean, View running_var);
void running(ExecContext& ctx, BatchNormConfig config, ConstView running_mean, ConstView running_var, View statistics);
void forward(ExecContext& ctx, BatchNormConfig config, ConstView x, ConstView statistics, ConstView weight,
             ConstView bias, View y);
void backward_sums(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View sums, View grad_weight,
                   View grad_bias, GradMode mode);
void backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                   ConstView sums, int64_t total_rows, View grad_x);
}  // namespace cuda::batch_norm

namespace {

/// Channels of x (..., C). throws ShapeError unless C is at least 1 and there is a row, where one is needed.
int64_t channels_of(const char* operation, const ConstView& x, bool needs_rows) {
  if (x.shape.rank() < 2 || x.shape[x.shape.rank() - 1] < 1 || (needs_rows && x.numel() == 0)) {
    throw ShapeError(fmt::format("{}: x has shape {}, expected (..., C) with C >= 1{}", operation, x.shape.str(),
                                 needs_rows ? " and at least one row" : ""));
  }
  return x.shape[x.shape.rank() - 1];
}

void check_rows(const char* operation, const char* argument, int64_t rows, int64_t least) {
  if (rows >= least) return;
  throw ShapeError(fmt::format("{}: {} is {}, expected at least {}", operation, argument, rows, least));
}

}  // namespace

void batch_norm_moments(ExecContext& ctx, ConstView x, View moments) {
  constexpr const char* kName = "batch_norm_moments";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "moments", moments, {2, channels_of(kName, x, true)}, DType::f32, ctx);
  check::no_overlap(kName, {"moments", moments}, {{"x", x}});
  run(ctx, {kName, {x}, {moments}}, cpu::batch_norm::moments, VITRINE_IF_CUDA(cuda::batch_norm::moments), x, moments);
}

void batch_norm_sums(ExecContext& ctx, int64_t rows, ConstView moments, View sums) {
  constexpr const char* kName = "batch_norm_sums";
  check_rows(kName, "rows", rows, 0);
  check::tensor(kName, "sums", sums, DType::f32, ctx);
  check::tensor(kName, "moments", moments, {2, sums.numel()}, DType::f32, ctx);
  check::no_overlap(kName, {"sums", sums}, {{"moments", moments}});
  run(ctx, {kName, {moments}, {sums}}, cpu::batch_norm::sums, VITRINE_IF_CUDA(cuda::batch_norm::sums), rows, moments,
      sums);
}

void batch_norm_recenter(ExecContext& ctx, int64_t rows, int64_t total_rows, ConstView sums, View moments) {
  constexpr const char* kName = "batch_norm_recenter";
  check_rows(kName, "rows", rows, 0);
  check_rows(kName, "total_rows", total_rows, 1);
  check::tensor(kName, "sums", sums, DType::f32, ctx);
  check::tensor(kName, "moments", moments, {2, sums.numel()}, DType::f32, ctx);
  check::no_overlap(kName, {"moments", moments}, {{"sums", sums}});
  run(ctx, {kName, {sums, moments}, {moments}}, cpu::batch_norm::recenter, VITRINE_IF_CUDA(cuda::batch_norm::recenter),
      rows, total_rows, sums, moments);
}

void batch_norm_statistics(ExecContext& ctx, const BatchNormConfig& config, int64_t total_rows, ConstView moments,
                           View statistics, View running_mean, View running_var) {
  constexpr const char* kName = "batch_norm_statistics";
  check_rows(kName, "total_rows", total_rows, 2);
  check::tensor(kName, "moments", moments, DType::f32, ctx);
  check::rank(kName, "moments", moments, 2, "(2, C)");
  check::tensor(kName, "statistics", statistics, {2, moments.shape[1]}, DType::f32, ctx);
  if (running_mean || running_var) {
    check::tensor(kName, "running_mean", running_mean, {moments.shape[1]}, DType::f32, ctx);
    check::tensor(kName, "running_var", running_var, {moments.shape[1]}, DType::f32, ctx);
    check::no_overlap(kName, {"running_mean", running_mean},
                      {{"running_var", running_var}, {"moments", moments}, {"statistics", statistics}});
    check::no_overlap(kName, {"running_var", running_var}, {{"moments", moments}, {"statistics", statistics}});
  }
  check::no_overlap(kName, {"statistics", statistics}, {{"moments", moments}});
  run(ctx, {kName, {moments, running_mean, running_var}, {statistics, running_mean, running_var}},
      cpu::batch_norm::statistics, VITRINE_IF_CUDA(cuda::batch_norm::statistics), config, total_rows, moments,
      statistics, running_mean, running_var);
}

void batch_norm_running(ExecContext& ctx, const BatchNormConfig& config, ConstView running_mean, ConstView running_var,
                        View statistics) {
  constexpr const char* kName = "batch_norm_running";
  check::tensor(kName, "running_mean", running_mean, DType::f32, ctx);
  check::tensor(kName, "running_var", running_var, {running_mean.numel()}, DType::f32, ctx);
  check::tensor(kName, "statistics", statistics, {2, running_mean.numel()}, DType::f32, ctx);
  check::no_overlap(kName, {"statistics", statistics}, {{"running_mean", running_mean}, {"running_var", running_var}});
  run(ctx, {kName, {running_mean, running_var}, {statistics}}, cpu::batch_norm::running,
      VITRINE_IF_CUDA(cuda::batch_norm::running), config, running_mean, running_var, statistics);
}

void batch_norm_forward(ExecContext& ctx, const BatchNormConfig& config, ConstView x, ConstView statistics,
                        ConstView weight, ConstView bias, View y) {
  constexpr const char* kName = "batch_norm_forward";
  check::tensor(kName, "x", x, ctx);
  const int64_t channels = channels_of(kName, x, false);
  check::tensor(kName, "statistics", statistics, {2, channels}, DType::f32, ctx);
  check::tensor(kName, "weight", weight, {channels}, DType::f32, ctx);
  check::tensor(kName, "bias", bias, {channels}, DType::f32, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  check::no_overlap(kName, {"y", y}, {{"statistics", statistics}, {"weight", weight}, {"bias", bias}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, statistics, weight, bias}, {y}}, cpu::batch_norm::forward,
      VITRINE_IF_CUDA(cuda::batch_norm::forward), config, x, statistics, weight, bias, y);
}

void batch_norm_backward_sums(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View sums,
                              View grad_weight, View grad_bias, GradMode mode) {
  constexpr const char* kName = "batch_norm_backward_sums";
  check::tensor(kName, "x", x, ctx);
  const int64_t channels = channels_of(kName, x, true);
  check::tensor(kName, "grad_y", grad_y, x.shape, x.dtype, ctx);
  check::tensor(kName, "statistics", statistics, {2, channels}, DType::f32, ctx);
  check::tensor(kName, "sums", sums, {2, channels}, DType::f32, ctx);
  check::tensor(kName, "grad_weight", grad_weight, {channels}, DType::f32, ctx);
  check::tensor(kName, "grad_bias", grad_bias, {channels}, DType::f32, ctx);
  check::no_overlap(kName, {"sums", sums},
                    {{"x", x},
                     {"grad_y", grad_y},
                     {"statistics", statistics},
                     {"grad_weight", grad_weight},
                     {"grad_bias", grad_bias}});
  check::no_overlap(kName, {"grad_weight", grad_weight},
                    {{"x", x}, {"grad_y", grad_y}, {"statistics", statistics}, {"grad_bias", grad_bias}});
  check::no_overlap(kName, {"grad_bias", grad_bias}, {{"x", x}, {"grad_y", grad_y}, {"statistics", statistics}});
  run(ctx, {kName, {x, grad_y, statistics}, {sums, grad_weight, grad_bias}}, cpu::batch_norm::backward_sums,
      VITRINE_IF_CUDA(cuda::batch_norm::backward_sums), x, grad_y, statistics, sums, grad_weight, grad_bias, mode);
}

void batch_norm_backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                              ConstView sums, int64_t total_rows, View grad_x) {
  constexpr const char* kName = "batch_norm_backward_data";
  check_rows(kName, "total_rows", total_rows, 1);
  check::tensor(kName, "x", x, ctx);
  const int64_t channels = channels_of(kName, x, false);
  check::tensor(kName, "grad_y", grad_y, x.shape, x.dtype, ctx);
  check::tensor(kName, "statistics", statistics, {2, channels}, DType::f32, ctx);
  check::tensor(kName, "weight", weight, {channels}, DType::f32, ctx);
  check::tensor(kName, "sums", sums, {2, channels}, DType::f32, ctx);
  check::tensor(kName, "grad_x", grad_x, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"grad_x", grad_x}, {{"grad_y", grad_y}});
  check::no_overlap(kName, {"grad_x", grad_x},
                    {{"x", x}, {"statistics", statistics}, {"weight", weight}, {"sums", sums}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, grad_y, statistics, weight, sums}, {grad_x}}, cpu::batch_norm::backward_data,
      VITRINE_IF_CUDA(cuda::batch_norm::backward_data), x, grad_y, statistics, weight, sums, total_rows, grad_x);
}

}  // namespace vitrine
