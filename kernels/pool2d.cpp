// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool2d.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/implementations.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr const char* kLayout = "(N, H, W, C)";

void check_config(const char* name, const Pool2dConfig& config) {
  if (config.window >= 1 && config.stride >= 1 && config.pad >= 0 && config.pad <= config.window / 2) return;
  throw ShapeError(fmt::format("{}: window {}, stride {}, pad {}: expected window >= 1, stride >= 1 and 0 <= pad <= window / 2", name, config.window,
                               config.stride, config.pad));
}

Shape output_shape(const char* name, const Pool2dConfig& config, const Shape& x) {
  check_config(name, config);
  if (x.rank() != 4) throw ShapeError(fmt::format("{}: x has shape {}, expected rank 4: {}", name, x.str(), kLayout));
  const int64_t height = x[1] + 2 * config.pad - config.window;
  const int64_t width = x[2] + 2 * config.pad - config.window;
  if (height < 0 || width < 0) {
    throw ShapeError(fmt::format("{}: x has shape {} but window {} with pad {} needs H and W of at least {}", name, x.str(), config.window,
                                 config.pad, config.window - 2 * config.pad));
  }
  return {x[0], height / config.stride + 1, width / config.stride + 1, x[3]};
}

/// The checks that forward and backward of every pool share: `small` is (N, P, Q, C), `large` (N, H, W, C), of one dtype and apart.
void check_pair(const char* name, const ExecContext& ctx, const char* small_name, const ConstView& small, const Shape& small_shape,
                const char* large_name, const ConstView& large) {
  check::storage(name, large_name, large);
  check::tensor(name, large_name, large, large.shape, large.dtype, ctx);
  check::tensor(name, small_name, small, small_shape, large.dtype, ctx);
  check::no_overlap(name, small_name, small, large_name, large);
}

Shape adaptive_shape(const char* name, const char* small_name, const ConstView& small, const char* large_name, const ConstView& large) {
  check::rank(name, large_name, large, 4, kLayout);
  check::rank(name, small_name, small, 4, "(N, P, Q, C)");
  for (int i = 1; i < 3; ++i) {
    if (large.shape[i] < 1 || small.shape[i] < 1) {
      throw ShapeError(fmt::format("{}: {} has shape {} and {} {}, expected at least one row and column in each", name, large_name, large.shape.str(),
                                   small_name, small.shape.str()));
    }
  }
  return {large.shape[0], small.shape[1], small.shape[2], large.shape[3]};
}

void check_max_window(const char* name, const Pool2dConfig& config) {
  if (config.window <= 16) return;
  throw UnsupportedError(fmt::format("{}: window is {}, expected at most 16: indices are kept in 8 bits", name, config.window));
}

}  // namespace

Shape pool2d_output_shape(const Pool2dConfig& config, const Shape& x) { return output_shape("pool2d_output_shape", config, x); }

void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices) {
  constexpr const char* kName = "max_pool2d_forward";
  check_max_window(kName, config);
  const Shape expected = output_shape(kName, config, x.shape);
  check_pair(kName, ctx, "y", y, expected, "x", x);
  if (indices) {
    check::tensor(kName, "indices", indices, expected, DType::u8, ctx);
    check::no_overlap(kName, "indices", indices, "x", x);
    check::no_overlap(kName, "indices", indices, "y", y);
  }
  run(ctx, {kName, {x}, {y, indices}}, VITRINE_IMPLEMENTATIONS(max_pool2d_forward), config, x, y, indices);
}

void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x) {
  constexpr const char* kName = "max_pool2d_backward";
  check_max_window(kName, config);
  const Shape expected = output_shape(kName, config, grad_x.shape);
  check_pair(kName, ctx, "grad_y", grad_y, expected, "grad_x", grad_x);
  check::tensor(kName, "indices", indices, expected, DType::u8, ctx);
  check::no_overlap(kName, "grad_x", grad_x, "indices", indices);
  run(ctx, {kName, {grad_y, indices}, {grad_x}}, VITRINE_IMPLEMENTATIONS(max_pool2d_backward), config, grad_y, indices, grad_x);
}

void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y) {
  constexpr const char* kName = "avg_pool2d_forward";
  check_pair(kName, ctx, "y", y, output_shape(kName, config, x.shape), "x", x);
  run(ctx, {kName, {x}, {y}}, VITRINE_IMPLEMENTATIONS(avg_pool2d_forward), config, x, y);
}

void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x) {
  constexpr const char* kName = "avg_pool2d_backward";
  check_pair(kName, ctx, "grad_y", grad_y, output_shape(kName, config, grad_x.shape), "grad_x", grad_x);
  run(ctx, {kName, {grad_y}, {grad_x}}, VITRINE_IMPLEMENTATIONS(avg_pool2d_backward), config, grad_y, grad_x);
}

void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "adaptive_avg_pool2d_forward";
  check_pair(kName, ctx, "y", y, adaptive_shape(kName, "y", y, "x", x), "x", x);
  run(ctx, {kName, {x}, {y}}, VITRINE_IMPLEMENTATIONS(adaptive_avg_pool2d_forward), x, y);
}

void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x) {
  constexpr const char* kName = "adaptive_avg_pool2d_backward";
  check_pair(kName, ctx, "grad_y", grad_y, adaptive_shape(kName, "grad_y", grad_y, "grad_x", grad_x), "grad_x", grad_x);
  run(ctx, {kName, {grad_y}, {grad_x}}, VITRINE_IMPLEMENTATIONS(adaptive_avg_pool2d_backward), grad_y, grad_x);
}

}  // namespace vitrine
