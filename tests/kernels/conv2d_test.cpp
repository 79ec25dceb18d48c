// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv2d.h"

#include <iterator>
#include <span>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#ifdef VITRINE_HAVE_CUDA
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/im2col_conv2d.h"
#endif
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/reference.h"

namespace vitrine::test {
namespace {

void portable_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  ctx.dispatch({"conv2d_forward", {x, w, bias}, {y}}, [=, &ctx] { cpu::portable::conv2d_forward(ctx.workspace(), config, x, w, bias, y); });
}
void portable_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  ctx.dispatch({"conv2d_backward_data", {grad_y, w}, {grad_x}},
               [=, &ctx] { cpu::portable::conv2d_backward_data(ctx.workspace(), config, grad_y, w, grad_x); });
}
void portable_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                              GradMode mode) {
  ctx.dispatch({"conv2d_backward_weight", {x, grad_y}, {grad_w, grad_bias}},
               [=, &ctx] { cpu::portable::conv2d_backward_weight(ctx.workspace(), config, x, grad_y, grad_w, grad_bias, mode); });
}

struct Path {
  const char* name;
  decltype(&vitrine::conv2d_forward) forward;
  decltype(&vitrine::conv2d_backward_data) backward_data;
  decltype(&vitrine::conv2d_backward_weight) backward_weight;
};
constexpr Path kCpuPaths[] = {{"dispatched", &vitrine::conv2d_forward, &vitrine::conv2d_backward_data, &vitrine::conv2d_backward_weight},
                              {"portable", &portable_forward, &portable_backward_data, &portable_backward_weight}};

#ifdef VITRINE_HAVE_CUDA
void own_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  ctx.dispatch(
      {"conv2d_forward", {x, w, bias}, {y}}, [] {}, [&] { cuda::im2col_conv2d_forward(ctx, config, x, w, bias, y); });
}
void own_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  ctx.dispatch(
      {"conv2d_backward_data", {grad_y, w}, {grad_x}}, [] {}, [&] { cuda::im2col_conv2d_backward_data(ctx, config, grad_y, w, grad_x); });
}
void own_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  ctx.dispatch(
      {"conv2d_backward_weight", {x, grad_y}, {grad_w, grad_bias}}, [] {},
      [&] {
        cuda::im2col_conv2d_backward_weight(ctx, config, x, grad_y, grad_w, mode);
        if (grad_bias) cuda::column_sum(ctx, grad_y, grad_bias, mode, ctx.workspace());
      });
}
/// Where cuDNN serves, our own convolution is tested beside it.
constexpr Path kGpuPaths[] = {{"dispatched", &vitrine::conv2d_forward, &vitrine::conv2d_backward_data, &vitrine::conv2d_backward_weight},
                              {"own", &own_forward, &own_backward_data, &own_backward_weight}};
#else
constexpr std::span<const Path> kGpuPaths;
#endif
std::span<const Path> paths() {
  if (on_gpu()) return kGpuPaths;
  return kCpuPaths;
}
constexpr int64_t kWorkspace = int64_t{16} << 20;

// A convolution with its arguments, on the host and on the device.
struct Case {
  ConvolutionGeometry g;
  Conv2dConfig config;
  std::vector<float> x, w, bias, grad_y, old_w, old_bias;
  Tensor x_device, w_device, bias_device, grad_y_device;
};

Case make_case(TestDevice& device, const Shape& x, const Shape& w, const Conv2dConfig& config, uint64_t seed) {
  Case c;
  c.config = config;
  c.g = {x, w, conv2d_output_shape(config, x, w), config.stride, config.pad};
  c.x = random_floats(x.numel(), seed + 100);
  c.w = random_floats(w.numel(), seed + 200);
  c.bias = random_floats(w[0], seed + 300);
  c.grad_y = random_floats(c.g.y.numel(), seed + 400);
  c.old_w = random_floats(w.numel(), seed + 500);
  c.old_bias = random_floats(w[0], seed + 600);
  c.x_device = device.tensor(x, c.x);
  c.w_device = device.tensor(w, c.w);
  c.bias_device = device.tensor(Shape{w[0]}, c.bias);
  c.grad_y_device = device.tensor(c.g.y, c.grad_y);
  return c;
}

// Odd sizes, H != W, C = 3 and 1, windows from 1 x 1 to 5 x 4, strides to 3; now and then whole blocks of 8 and 16 channels.
Case random_case(TestDevice& device, uint64_t seed) {
  const auto r = random_integers<int32_t>(9, seed, 0, 1000);
  const auto pick = [&](size_t i, int64_t low, int64_t high) { return low + r[i] % (high - low + 1); };
  const int64_t window_h = pick(0, 1, 5);
  const int64_t window_w = seed % 3 == 0 ? window_h : pick(1, 1, 4);
  int64_t channels = seed % 4 == 0 ? 3 : pick(2, 1, 19);
  int64_t outputs = pick(3, 1, 21);
  if (seed % 5 == 0) channels = 8 * pick(2, 1, 3);
  if (seed % 5 <= 1) outputs = 8 * pick(3, 1, 4);
  const Conv2dConfig config{pick(4, 1, 3), pick(5, 0, 2), seed % 2 == 0};
  return make_case(device, {pick(6, 1, 5), window_h + pick(7, 0, 11), window_w + pick(8, 0, 9), channels}, {outputs, window_h, window_w, channels},
                   config, seed);
}

void check_forward(TestDevice& device, const Case& c, const Path& path, bool with_bias) {
  Reference expected = reference_conv2d_forward(c.g, c.x, c.w);
  if (with_bias) add_bias(expected, c.bias);
  if (c.config.relu) apply_relu(expected);
  const GuardedTensor y = device.guarded(c.g.y);
  path.forward(device.ctx(), c.config, c.x_device, c.w_device, with_bias ? c.bias_device : Tensor(), y);
  expect_rounded(device.values(y), expected, std::string(path.name) + " forward " + c.g.x.str() + " * " + c.g.w.str());
}

void check_backward(TestDevice& device, const Case& c, const Path& path, GradMode mode, bool with_bias) {
  const std::string what = std::string(path.name) + " backward " + c.g.x.str() + " * " + c.g.w.str();
  const GuardedTensor grad_x = device.guarded(c.g.x);
  path.backward_data(device.ctx(), c.config, c.grad_y_device, c.w_device, grad_x);
  expect_rounded(device.values(grad_x), reference_conv2d_backward_data(c.g, c.grad_y, c.w), what + " grad_x");

  const bool accumulate = mode == GradMode::accumulate;
  const auto initial = [&](const std::vector<float>& old) { return accumulate ? std::span<const float>(old) : std::span<const float>(); };
  const int64_t outputs = c.g.w[0];
  const GuardedTensor grad_w = accumulate ? device.guarded(c.g.w, c.old_w) : device.guarded(c.g.w);
  const GuardedTensor grad_bias = accumulate ? device.guarded(Shape{outputs}, c.old_bias) : device.guarded(Shape{outputs});
  path.backward_weight(device.ctx(), c.config, c.x_device, c.grad_y_device, grad_w, with_bias ? grad_bias.view : View{}, mode);
  expect_rounded(device.values(grad_w), reference_conv2d_backward_weight(c.g, c.x, c.grad_y, initial(c.old_w)), what + " grad_w");
  if (!with_bias) return;
  const Reference sums = reference_column_sums(c.g.y.numel() / outputs, outputs, c.grad_y, initial(c.old_bias));
  expect_rounded(device.values(grad_bias), sums, what + " grad_bias");
}

class Conv2dTest : public ThreadsTest {
 protected:
  Conv2dTest() { device.ctx().reserve_workspace(kWorkspace); }
  TestDevice device{GetParam()};
};

TEST_P(Conv2dTest, EqualsTheReferenceOnRandomShapes) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Case c = random_case(device, seed);
    for (const Path& path : paths()) {
      check_forward(device, c, path, seed % 3 != 0);
      check_backward(device, c, path, seed % 2 == 0 ? GradMode::overwrite : GradMode::accumulate, seed % 3 != 1);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Conv2dTest, EqualsTheReferenceOnShapesOfModels) {
  const struct {
    Shape x, w;
    Conv2dConfig config;
  } cases[] = {
      {{2, 35, 43, 3}, {64, 11, 11, 3}, {4, 2, true}}, {{1, 9, 9, 64}, {48, 5, 5, 64}, {1, 2, true}},  {{2, 7, 7, 48}, {40, 3, 3, 48}, {1, 1, true}},
      {{3, 8, 8, 3}, {32, 3, 3, 3}, {1, 1, false}},    {{3, 9, 7, 16}, {24, 1, 1, 16}, {1, 0, false}}, {{2, 9, 9, 16}, {24, 1, 1, 16}, {2, 0, false}},
      {{2, 28, 28, 1}, {6, 5, 5, 1}, {1, 2, false}},   {{1, 4, 4, 8}, {8, 4, 4, 8}, {1, 0, true}},
  };
  uint64_t seed = 7;
  for (const auto& shape : cases) {
    const Case c = make_case(device, shape.x, shape.w, shape.config, ++seed);
    for (const Path& path : paths()) {
      check_forward(device, c, path, true);
      check_backward(device, c, path, GradMode::overwrite, true);
      check_backward(device, c, path, GradMode::accumulate, true);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Threads, Conv2dTest, ::testing::Values(1, 2, 3));

TEST_F(DeviceTest, Conv2dServesWithinASmallWorkspace) {
  // One row of columns for each of one or two threads, then a few more; GPUs take whole output lines, of 8 rows of columns.
  const Shape x{2, 9, 8, 5}, w{7, 3, 3, 5};
  for (const int64_t rows : {1, 2, 3, 11}) {
    ctx().reserve_workspace(rows * (on_gpu() ? 8 : 1) * 3 * 3 * 5 * 4);
    const Case c = make_case(device, x, w, {1, 1, true}, static_cast<uint64_t>(rows));
    for (const Path& path : paths()) {
      check_forward(device, c, path, true);
      check_backward(device, c, path, GradMode::accumulate, true);
    }
  }
}

TEST_F(DeviceTest, Conv2dCutsTheWorkAnywhere) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const Case c = random_case(device, seed);
    const int64_t line_bytes = c.g.y[2] * c.g.w.numel() / c.g.w[0] * 4;
    const int64_t lines[] = {1, 2, 3, c.g.y[1], c.g.y[1] + 1};
    ctx().reserve_workspace(lines[seed % 5] * line_bytes);
    for (const Path& path : paths()) {
      check_forward(device, c, path, seed % 3 != 0);
      check_backward(device, c, path, seed % 2 == 0 ? GradMode::overwrite : GradMode::accumulate, seed % 3 != 1);
      if (HasFailure()) return;
    }
  }
}

TEST_F(DeviceTest, Conv2dGivesTheSameBitsEveryTime) {
  ctx().reserve_workspace(kWorkspace);
  const Case c = make_case(device, {3, 17, 13, 16}, {24, 3, 3, 16}, {1, 1, true}, 5);
  for (const Path& path : paths()) {
    std::vector<float> first[3];
    for (int repeat = 0; repeat < 5; ++repeat) {
      const Tensor y = device.empty(c.g.y), grad_x = device.empty(c.g.x), grad_w = device.empty(c.g.w);
      path.forward(ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
      path.backward_data(ctx(), c.config, c.grad_y_device, c.w_device, grad_x);
      path.backward_weight(ctx(), c.config, c.x_device, c.grad_y_device, grad_w, {}, GradMode::overwrite);
      const std::vector<float> values[3] = {device.values(y), device.values(grad_x), device.values(grad_w)};
      for (int i = 0; i < 3; ++i) {
        if (repeat == 0) first[i] = values[i];
        expect_same_bits(values[i], first[i], path.name);
      }
    }
  }
}

TEST_F(DeviceTest, Conv2dWithoutWorkspaceNamesTheBytesNeeded) {
  const Case c = make_case(device, {2, 9, 8, 5}, {7, 3, 3, 5}, {1, 1, false}, 1);
  const Tensor y = device.empty(c.g.y);
  expect_error<OutOfMemory>(
      [&] {
        // On GPUs cuDNN may do without.
        paths()[on_gpu() ? 1 : 0].forward(ctx(), c.config, c.x_device, c.w_device, {}, y);
        device.synchronize();
      },
      std::string("conv2d_forward: x (2, 9, 8, 5) with a window of 3 x 3 needs a workspace of at least ") + (on_gpu() ? "1440" : "180") +
          " bytes, but 0 bytes are reserved");
}

TEST_F(DeviceTest, Conv2dBackwardWeightOfNoSamples) {
  const Tensor x = device.empty({0, 4, 4, 3});
  const Tensor grad_y = device.empty({0, 2, 2, 2});
  const GuardedTensor grad_w = device.guarded(Shape{2, 3, 3, 3}, std::vector<float>(54, 5.0F));
  conv2d_backward_weight(ctx(), {}, x, grad_y, grad_w, {}, GradMode::accumulate);
  expect_same_bits(device.values(grad_w), std::vector<float>(54, 5.0F), "accumulated");
  conv2d_backward_weight(ctx(), {}, x, grad_y, grad_w, {}, GradMode::overwrite);
  expect_same_bits(device.values(grad_w), std::vector<float>(54, 0.0F), "overwritten");
}

TEST_F(DeviceTest, Conv2dRefusesWhatDoesNotFit) {
  const Tensor x = device.empty({2, 8, 6, 3});
  const Tensor w = device.empty({4, 3, 3, 3});
  const Tensor y = device.empty({2, 6, 4, 4});
  expect_error<ShapeError>(
      [&] {
        conv2d_forward(ctx(), {}, x, device.empty({4, 3, 3, 2}), {}, y);
      },
      "conv2d_forward: x has shape (2, 8, 6, 3) but w (4, 3, 3, 2) needs x of shape (N, H, W, 2)");
  expect_error<ShapeError>(
      [&] {
        conv2d_forward(ctx(), {}, x, device.empty({4, 3, 7, 3}), {}, y);
      },
      "conv2d_forward: x has shape (2, 8, 6, 3), padded 8 x 6, but w (4, 3, 7, 3) needs at least 3 x 7");
  expect_error<ShapeError>([&] { conv2d_forward(ctx(), {0, 0, false}, x, w, {}, y); }, "conv2d_forward: stride is 0 and pad is 0");
  expect_error<ShapeError>(
      [&] {
        conv2d_forward(ctx(), {2, 0, false}, x, w, {}, y);
      },
      "conv2d_forward: y has shape (2, 6, 4, 4), expected (2, 3, 2, 4)");
  expect_error<ShapeError>(
      [&] {
        conv2d_forward(ctx(), {}, x.reshape({16, 6, 3}), w, {}, y);
      },
      "conv2d_forward: x has shape (16, 6, 3), expected (N, H, W, C)");
  expect_error<ShapeError>([&] { conv2d_backward_data(ctx(), {}, y, w, y); }, "conv2d_backward_data: x has shape (2, 6, 4, 4)");
  expect_error<ShapeError>([&] { conv2d_backward_weight(ctx(), {}, x, y, w, w, GradMode::overwrite); },
                           "conv2d_backward_weight: grad_bias has shape (4, 3, 3, 3), expected (4)");
  EXPECT_EQ(conv2d_output_shape({4, 2, false}, {1, 227, 227, 3}, {64, 11, 11, 3}), (Shape{1, 56, 56, 64}));
}

#ifdef VITRINE_HAVE_ONEDNN
TEST_F(DeviceTest, Conv2dUsesOneDnnWhereTheWorkspaceTakesIt) {
  if (on_gpu()) GTEST_SKIP() << "oneDNN serves CPU devices";
  ctx().reserve_workspace(kWorkspace);
  const Case c = make_case(device, {2, 13, 13, 16}, {32, 3, 3, 16}, {1, 1, true}, 1);
  const Tensor y = device.empty(c.g.y), grad_x = device.empty(c.g.x), grad_w = device.empty(c.g.w);
  int served = 0;
  const View y_view = y, grad_x_view = grad_x, grad_w_view = grad_w;
  const ConstView x = c.x_device, w = c.w_device, grad_y = c.grad_y_device;
  ctx().dispatch({"conv2d", {x, w, grad_y}, {y_view, grad_x_view, grad_w_view}}, [&, this] {
    served += cpu::onednn::conv2d_forward(ctx(), ctx().workspace(), c.config, x, w, {}, y_view) ? 1 : 0;
    served += cpu::onednn::conv2d_backward_data(ctx(), ctx().workspace(), c.config, grad_y, w, grad_x_view) ? 1 : 0;
    served += cpu::onednn::conv2d_backward_weight(ctx(), ctx().workspace(), c.config, x, grad_y, grad_w_view, {}, GradMode::accumulate) ? 1 : 0;
  });
  device.synchronize();
  EXPECT_EQ(served, 3);
}
#endif

}  // namespace
}  // namespace vitrine::test
