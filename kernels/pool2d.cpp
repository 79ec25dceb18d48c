// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool2d.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {  // pool2d_cpu.cpp
VITRINE_CPU_LEVELS(max_pool2d_forward, ExecContext&, const Pool2dConfig&, ConstView, View, View, bool);
VITRINE_CPU_LEVELS(max_pool2d_backward, ExecContext&, const Pool2dConfig&, ConstView, ConstView, View, View, GradMode);
VITRINE_CPU_LEVELS(avg_pool2d_forward, ExecContext&, const Pool2dConfig&, ConstView, View);
VITRINE_CPU_LEVELS(avg_pool2d_backward, ExecContext&, const Pool2dConfig&, ConstView, View);
VITRINE_CPU_LEVELS(adaptive_avg_pool2d_forward, ExecContext&, ConstView, View);
VITRINE_CPU_LEVELS(adaptive_avg_pool2d_backward, ExecContext&, ConstView, View);
}  // namespace cpu

namespace cuda {  // max_pool2d.cu, mean_pool2d.cu
void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices, bool relu);
void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x,
                         View sums, GradMode mode);
void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y);
void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x);
void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y);
void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x);
}  // namespace cuda

namespace {

constexpr const char* kLayout = "(N, H, W, C)";

void check_config(const char* name, const Pool2dConfig& config) {
  if (config.window >= 1 && config.stride >= 1 && config.pad >= 0 && config.pad <= config.window / 2) return;
  throw ShapeError(
      fmt::format("{}: window {}, stride {}, pad {}: expected window >= 1, stride >= 1 and 0 <= pad <= window / 2",
                  name, config.window, config.stride, config.pad));
}

Shape output_shape(const char* name, const Pool2dConfig& config, const Shape& x) {
  check_config(name, config);
  if (x.rank() != 4) throw ShapeError(fmt::format("{}: x has shape {}, expected rank 4: {}", name, x.str(), kLayout));
  const int64_t height = x[1] + 2 * config.pad - config.window;
  const int64_t width = x[2] + 2 * config.pad - config.window;
  if (height < 0 || width < 0) {
    throw ShapeError(fmt::format("{}: x has shape {} but window {} with pad {} needs H and W of at least {}", name,
                                 x.str(), config.window, config.pad, config.window - 2 * config.pad));
  }
  return {x[0], height / config.stride + 1, width / config.stride + 1, x[3]};
}

/// Checks the two tensors of a pool: `small` (N, P, Q, C) and `large` (N, H, W, C), of one dtype, apart.
void check_pair(const char* name, const ExecContext& ctx, const check::Argument& small, const Shape& small_shape,
                const check::Argument& large) {
  check::tensor(name, large.name, large.view, ctx);
  check::tensor(name, small.name, small.view, small_shape, large.view.dtype, ctx);
  check::no_overlap(name, small, {large});
}

/// The shape of `small` in an adaptive pool. throws ShapeError unless both are images of at least one row and column.
Shape adaptive_shape(const char* name, const check::Argument& small, const check::Argument& large) {
  check::rank(name, large.name, large.view, 4, kLayout);
  check::rank(name, small.name, small.view, 4, "(N, P, Q, C)");
  const Shape& from = large.view.shape;
  const Shape& to = small.view.shape;
  for (int i = 1; i < 3; ++i) {
    if (from[i] >= 1 && to[i] >= 1) continue;
    throw ShapeError(fmt::format("{}: {} has shape {} and {} {}, expected at least one row and column in each", name,
                                 large.name, from.str(), small.name, to.str()));
  }
  return {from[0], to[1], to[2], from[3]};
}

void check_max_window(const char* name, const Pool2dConfig& config) {
  if (config.window <= 16) return;
  throw UnsupportedError(
      fmt::format("{}: window is {}, expected at most 16: positions are stored in 8 bits", name, config.window));
}

}  // namespace

Shape pool2d_output_shape(const Pool2dConfig& config, const Shape& x) {
  return output_shape("pool2d_output_shape", config, x);
}

void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices, bool relu) {
  constexpr const char* kName = "max_pool2d_forward";
  check_max_window(kName, config);
  const Shape expected = output_shape(kName, config, x.shape);
  check_pair(kName, ctx, {"y", y}, expected, {"x", x});
  if (indices) {
    if (relu && config.window > kMostReluWindow) {
      throw UnsupportedError(fmt::format(
          "{}: window is {} with relu and indices, expected at most {}: one of the 256 indices stands for no position",
          kName, config.window, kMostReluWindow));
    }
    check::tensor(kName, "indices", indices, expected, DType::u8, ctx);
    check::no_overlap(kName, {"indices", indices}, {{"x", x}, {"y", y}});
  }
  run(ctx, {kName, {x}, {y, indices}}, cpu::max_pool2d_forward, VITRINE_IF_CUDA(cuda::max_pool2d_forward), config, x, y,
      indices, relu);
}

void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x,
                         View sums, GradMode mode) {
  constexpr const char* kName = "max_pool2d_backward";
  check_max_window(kName, config);
  const Shape expected = output_shape(kName, config, grad_x.shape);
  check_pair(kName, ctx, {"grad_y", grad_y}, expected, {"grad_x", grad_x});
  check::tensor(kName, "indices", indices, expected, DType::u8, ctx);
  check::no_overlap(kName, {"grad_x", grad_x}, {{"indices", indices}});
  check::column_sums(kName, sums, grad_x, ctx);
  check::no_overlap(kName, {"sums", sums}, {{"grad_y", grad_y}, {"indices", indices}, {"grad_x", grad_x}});
  if (grad_x.numel() == 0) return add_nothing(ctx, mode, {sums});
  run(ctx, {kName, {grad_y, indices, content_of(sums, mode)}, {grad_x, sums}}, cpu::max_pool2d_backward,
      VITRINE_IF_CUDA(cuda::max_pool2d_backward), config, grad_y, indices, grad_x, sums, mode);
}

void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y) {
  constexpr const char* kName = "avg_pool2d_forward";
  check_pair(kName, ctx, {"y", y}, output_shape(kName, config, x.shape), {"x", x});
  run(ctx, {kName, {x}, {y}}, cpu::avg_pool2d_forward, VITRINE_IF_CUDA(cuda::avg_pool2d_forward), config, x, y);
}

void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x) {
  constexpr const char* kName = "avg_pool2d_backward";
  check_pair(kName, ctx, {"grad_y", grad_y}, output_shape(kName, config, grad_x.shape), {"grad_x", grad_x});
  run(ctx, {kName, {grad_y}, {grad_x}}, cpu::avg_pool2d_backward, VITRINE_IF_CUDA(cuda::avg_pool2d_backward), config,
      grad_y, grad_x);
}

void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "adaptive_avg_pool2d_forward";
  check_pair(kName, ctx, {"y", y}, adaptive_shape(kName, {"y", y}, {"x", x}), {"x", x});
  run(ctx, {kName, {x}, {y}}, cpu::adaptive_avg_pool2d_forward, VITRINE_IF_CUDA(cuda::adaptive_avg_pool2d_forward), x,
      y);
}

void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x) {
  constexpr const char* kName = "adaptive_avg_pool2d_backward";
  check_pair(kName, ctx, {"grad_y", grad_y}, adaptive_shape(kName, {"grad_y", grad_y}, {"grad_x", grad_x}),
             {"grad_x", grad_x});
  run(ctx, {kName, {grad_y}, {grad_x}}, cpu::adaptive_avg_pool2d_backward,
      VITRINE_IF_CUDA(cuda::adaptive_avg_pool2d_backward), grad_y, grad_x);
}

}  // namespace vitrine
