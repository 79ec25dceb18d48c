// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear.h"

#include <iterator>
#include <span>

#include "kernels/cpu/portable.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/reference.h"

namespace vitrine::test {
namespace {

void portable_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  ctx.dispatch({"linear_forward", {x, w, bias}, {y}}, [=] { cpu::portable::linear_forward(x, w, bias, relu, y); });
}
void portable_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x) {
  ctx.dispatch({"linear_backward_data", {grad_y, w}, {grad_x}}, [=] { cpu::portable::linear_backward_data(grad_y, w, grad_x); });
}
void portable_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  ctx.dispatch({"linear_backward_weight", {x, grad_y}, {grad_w, grad_bias}},
               [=] { cpu::portable::linear_backward_weight(x, grad_y, grad_w, grad_bias, mode); });
}

struct Path {
  const char* name;
  decltype(&vitrine::linear_forward) forward;
  decltype(&vitrine::linear_backward_data) backward_data;
  decltype(&vitrine::linear_backward_weight) backward_weight;
};
constexpr Path kAllPaths[] = {{"dispatched", &vitrine::linear_forward, &vitrine::linear_backward_data, &vitrine::linear_backward_weight},
                              {"portable", &portable_forward, &portable_backward_data, &portable_backward_weight}};
/// The portable implementation is one of the CPU's.
std::span<const Path> paths() { return {kAllPaths, on_gpu() ? size_t{1} : std::size(kAllPaths)}; }

class LinearTest : public ThreadsTest {
 protected:
  TestDevice device{GetParam()};
};

TEST_P(LinearTest, ForwardEqualsTheReference) {
  for (uint64_t seed = 0; seed < 32; ++seed) {
    const auto sizes = random_integers<int32_t>(3, seed, 1, seed % 4 == 0 ? 130 : 35);
    const int64_t n = sizes[0], in = sizes[1], out = sizes[2];
    const bool with_bias = seed % 2 == 0, relu = seed / 2 % 2 == 0;
    const auto x = random_floats(n * in, seed + 100);
    const auto w = random_floats(out * in, seed + 200);
    const auto bias = random_floats(out, seed + 300);
    const Tensor x_device = device.tensor(Shape{n, in}, x);
    const Tensor w_device = device.tensor(Shape{out, in}, w);
    const Tensor bias_device = with_bias ? device.tensor(Shape{out}, bias) : Tensor();
    Reference expected = reference_gemm(false, true, n, out, in, x, w);
    if (with_bias) add_bias(expected, bias);
    if (relu) apply_relu(expected);
    for (const Path& path : paths()) {
      const GuardedTensor y = device.guarded(Shape{n, out});
      path.forward(device.ctx(), x_device, w_device, bias_device, relu, y);
      expect_rounded(device.values(y), expected, std::string(path.name) + " " + y.view.shape.str());
    }
  }
}

TEST_P(LinearTest, BackwardEqualsTheReference) {
  for (uint64_t seed = 0; seed < 32; ++seed) {
    const auto sizes = random_integers<int32_t>(3, seed, 1, seed % 4 == 0 ? 130 : 35);
    const int64_t n = sizes[0], in = sizes[1], out = sizes[2];
    const GradMode mode = seed % 2 == 0 ? GradMode::overwrite : GradMode::accumulate;
    const auto x = random_floats(n * in, seed + 100);
    const auto w = random_floats(out * in, seed + 200);
    const auto grad_y = random_floats(n * out, seed + 300);
    const auto old_w = random_floats(out * in, seed + 400);
    const auto old_bias = random_floats(out, seed + 500);
    const Tensor x_device = device.tensor(Shape{n, in}, x);
    const Tensor w_device = device.tensor(Shape{out, in}, w);
    const Tensor grad_y_device = device.tensor(Shape{n, out}, grad_y);
    const bool accumulate = mode == GradMode::accumulate;
    for (const Path& path : paths()) {
      const std::string what = std::string(path.name) + " " + grad_y_device.shape().str();
      const GuardedTensor grad_x = device.guarded(Shape{n, in});
      path.backward_data(device.ctx(), grad_y_device, w_device, grad_x);
      expect_rounded(device.values(grad_x), reference_gemm(false, false, n, in, out, grad_y, w), what + " grad_x");

      const GuardedTensor grad_w = accumulate ? device.guarded(Shape{out, in}, old_w) : device.guarded(Shape{out, in});
      const GuardedTensor grad_bias = accumulate ? device.guarded(Shape{out}, old_bias) : device.guarded(Shape{out});
      path.backward_weight(device.ctx(), x_device, grad_y_device, grad_w, grad_bias, mode);
      const auto initial = [&](const std::vector<float>& old) { return accumulate ? std::span<const float>(old) : std::span<const float>(); };
      expect_rounded(device.values(grad_w), reference_gemm(true, false, out, in, n, grad_y, x, initial(old_w)), what + " grad_w");
      expect_rounded(device.values(grad_bias), reference_column_sums(n, out, grad_y, initial(old_bias)), what + " grad_bias");
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Threads, LinearTest, ::testing::Values(1, 2, 3));

TEST_F(DeviceTest, LinearBackwardWeightOfNoSamples) {
  const Tensor x = device.empty({0, 3});
  const Tensor grad_y = device.empty({0, 2});
  const GuardedTensor grad_w = device.guarded(Shape{2, 3}, std::vector<float>(6, 5.0F));
  const GuardedTensor grad_bias = device.guarded(Shape{2}, std::vector<float>(2, 5.0F));
  linear_backward_weight(ctx(), x, grad_y, grad_w, grad_bias, GradMode::accumulate);
  expect_same_bits(device.values(grad_w), std::vector<float>(6, 5.0F), "accumulated");
  linear_backward_weight(ctx(), x, grad_y, grad_w, grad_bias, GradMode::overwrite);
  expect_same_bits(device.values(grad_w), std::vector<float>(6, 0.0F), "overwritten");
  expect_same_bits(device.values(grad_bias), std::vector<float>(2, 0.0F), "bias overwritten");
}

TEST_F(DeviceTest, LinearRefusesWhatDoesNotFit) {
  const Tensor x = device.empty({64, 784});
  const Tensor w = device.empty({256, 512});
  const Tensor y = device.empty({64, 256});
  expect_error<ShapeError>([&] { linear_forward(ctx(), x, w, {}, false, y); },
                           "linear_forward: x has shape (64, 784) but weight (256, 512) needs x of shape (N, 512)");
  expect_error<ShapeError>([&] { linear_backward_data(ctx(), x, w, y); },
                           "linear_backward_data: grad_y has shape (64, 784) but weight (256, 512) needs grad_y of shape (N, 256)");
  const Tensor good = device.empty({64, 512});
  expect_error<ShapeError>([&] { linear_forward(ctx(), good, w, good, false, y); }, "linear_forward: bias has shape (64, 512), expected (256)");
  expect_error<ShapeError>([&] { linear_forward(ctx(), good, w, {}, false, good); }, "linear_forward: y has shape (64, 512), expected (64, 256)");
  expect_error<ShapeError>([&] { linear_backward_weight(ctx(), good, y.rows(0, 32), w, {}, GradMode::overwrite); },
                           "linear_backward_weight: grad_y has shape (32, 256) but x (64, 512) needs grad_y of shape (64, O)");
  expect_error<DeviceError>(
      [&] {
        linear_forward(ctx(), good, w, {}, false, View{nullptr, {64, 256}, DType::f32, ctx().device()});
      },
      "linear_forward: y has no memory");
}

}  // namespace
}  // namespace vitrine::test
