// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/conv2d.h"
#include "tests/kernels/conv2d_paths.h"
#include "tests/support/stored.h"

/// Convolutions to compare with the reference.
namespace vitrine::test {

inline constexpr int64_t kWorkspace = int64_t{16} << 20;

/// A convolution with its arguments, on the host and on the device.
struct Conv2dCase {
  DType dtype;
  ConvolutionGeometry g;
  Conv2dConfig config;
  std::vector<float> x, w, bias, grad_y, old_w, old_bias;
  Tensor x_device, w_device, bias_device, grad_y_device;

  std::string name(const Conv2dPath& path) const {
    return std::string(path.name) + " " + dtype_name(dtype) + " " + g.x.str() + " * " + g.w.str();
  }
  /// Error of rounding a result to the dtype; none for f32.
  double roundoff() const { return dtype == DType::f32 ? 0 : unit_roundoff(dtype); }
  double underflow() const { return dtype == DType::f32 ? 0 : half_smallest(dtype); }
};

inline Conv2dCase make_case(TestDevice& device, DType dtype, const Shape& x, const Shape& w, const Conv2dConfig& config,
                            uint64_t seed) {
  Conv2dCase c;
  c.dtype = dtype;
  c.config = config;
  c.g = {x, w, conv2d_output_shape(config, x, w), config.stride, config.pad};
  c.x = random_stored(dtype, x.numel(), seed + 100);
  c.w = random_stored(dtype, w.numel(), seed + 200);
  c.bias = random_stored(dtype, w[0], seed + 300);
  c.grad_y = random_stored(dtype, c.g.y.numel(), seed + 400);
  c.old_w = random_floats(w.numel(), seed + 500);
  c.old_bias = random_floats(w[0], seed + 600);
  c.x_device = stored_tensor(device, dtype, x, c.x);
  c.w_device = stored_tensor(device, dtype, w, c.w);
  c.bias_device = stored_tensor(device, dtype, {w[0]}, c.bias);
  c.grad_y_device = stored_tensor(device, dtype, c.g.y, c.grad_y);
  return c;
}

/// Odd sizes, H != W, C = 3 and 1, windows from 1 x 1 to 5 x 4, strides up to 3; sometimes whole blocks of 8 and 16
/// channels.
inline Conv2dCase random_case(TestDevice& device, DType dtype, uint64_t seed) {
  const auto r = random_integers<int32_t>(9, seed, 0, 1000);
  const auto pick = [&](size_t i, int64_t low, int64_t high) { return low + r[i] % (high - low + 1); };
  const int64_t window_h = pick(0, 1, 5);
  const int64_t window_w = seed % 3 == 0 ? window_h : pick(1, 1, 4);
  int64_t channels = seed % 4 == 0 ? 3 : pick(2, 1, 19);
  int64_t outputs = pick(3, 1, 21);
  if (seed % 5 == 0) channels = 8 * pick(2, 1, 3);
  if (seed % 5 <= 1) outputs = 8 * pick(3, 1, 4);
  const Conv2dConfig config{pick(4, 1, 3), pick(5, 0, 2), seed % 2 == 0};
  return make_case(device, dtype, {pick(6, 1, 5), window_h + pick(7, 0, 11), window_w + pick(8, 0, 9), channels},
                   {outputs, window_h, window_w, channels}, config, seed);
}

/// Fills the workspace of a CPU device with NaN, which results must not depend on.
inline void poison_workspace(TestDevice& device) {
  const View workspace = device.ctx().workspace();
  if (on_gpu() || !workspace) return;
  device.ctx().dispatch({"poison_workspace", {}, {}}, [=] {
    std::memset(workspace.data, GuardedTensor::kPoison, static_cast<size_t>(workspace.bytes()));
  });
}

/// Runs the pass on the path and compares it with the reference.
inline void check_forward(TestDevice& device, const Conv2dCase& c, const Conv2dPath& path, bool with_bias) {
  Reference expected = reference_conv2d_forward(c.g, c.x, c.w);
  if (with_bias) add_bias(expected, c.bias);
  if (c.config.relu) apply_relu(expected);
  const GuardedTensor y = device.guarded(c.g.y, c.dtype);
  poison_workspace(device);
  path.forward(device.ctx(), c.config, c.x_device, c.w_device, with_bias ? c.bias_device : Tensor(), y);
  expect_rounded(stored_values(device, y), expected, c.name(path) + " y", c.roundoff(), c.underflow());
}

/// The same for both gradients, and that of a bias if `with_bias`.
inline void check_backward(TestDevice& device, const Conv2dCase& c, const Conv2dPath& path, GradMode mode,
                           bool with_bias) {
  const std::string what = c.name(path);
  const GuardedTensor grad_x = device.guarded(c.g.x, c.dtype);
  poison_workspace(device);
  path.backward_data(device.ctx(), c.config, c.grad_y_device, c.w_device, grad_x);
  expect_rounded(stored_values(device, grad_x), reference_conv2d_backward_data(c.g, c.grad_y, c.w), what + " grad_x",
                 c.roundoff(), c.underflow());

  const bool accumulate = mode == GradMode::accumulate;
  const auto initial = [&](const std::vector<float>& old) {
    return accumulate ? std::span<const float>(old) : std::span<const float>();
  };
  const int64_t outputs = c.g.w[0];
  const GuardedTensor grad_w = accumulate ? device.guarded(c.g.w, c.old_w) : device.guarded(c.g.w);
  const GuardedTensor grad_bias =
      accumulate ? device.guarded(Shape{outputs}, c.old_bias) : device.guarded(Shape{outputs});
  poison_workspace(device);
  path.backward_weight(device.ctx(), c.config, c.x_device, c.grad_y_device, grad_w, with_bias ? grad_bias.view : View{},
                       mode);
  // cuDNN may round the gradient of f16 and bf16 images to their dtype before it adds it to the content, of up to 1.
  const double rounded = on_gpu() ? c.roundoff() : 0;
  expect_rounded(device.values(grad_w), reference_conv2d_backward_weight(c.g, c.x, c.grad_y, initial(c.old_w)),
                 what + " grad_w", rounded, rounded);
  if (!with_bias) return;
  const Reference sums = reference_column_sums(c.g.y.numel() / outputs, outputs, c.grad_y, initial(c.old_bias));
  expect_rounded(device.values(grad_bias), sums, what + " grad_bias");
}

}  // namespace vitrine::test
