// SPDX-License-Identifier: Apache-2.0
// Winograd's convolutions on CPU devices: the error that is allowed, chunks of images, and what runs directly instead.
#include <cmath>

#include <fmt/format.h>

#include "kernels/conv2d.h"
#include "kernels/cpu/onednn.h"
#include "tests/kernels/conv2d_cases.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::winograd_test {
namespace {

constexpr int64_t kPlenty = int64_t{64} << 20;

class WinogradTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (on_gpu()) GTEST_SKIP() << "for CPU devices";
    if (!winograd_refusal().empty()) GTEST_SKIP() << winograd_refusal().str();
    device.ctx().reserve_workspace(kPlenty);
  }
  TestDevice device{GetParam(), int64_t{256} << 20, true};
};
INSTANTIATE_TEST_SUITE_P(Threads, WinogradTest, ::testing::Values(1, 3));

/// Root of the mean square of the errors, relative to that of the values.
template <class T>
double relative_rms(const std::vector<float>& values, const std::vector<T>& expected) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double right = expected[i], error = static_cast<double>(values[i]) - right;
    errors += error * error;
    squares += right * right;
  }
  return std::sqrt(errors / squares);
}

/// y, grad_x, grad_w and grad_bias of a case, the last two added to what was there if `mode` says so.
std::vector<std::vector<float>> compute(TestDevice& device, const Conv2dCase& c, GradMode mode) {
  const bool accumulate = mode == GradMode::accumulate;
  const GuardedTensor y = device.guarded(c.g.y), grad_x = device.guarded(c.g.x),
                      grad_w = accumulate ? device.guarded(c.g.w, c.old_w) : device.guarded(c.g.w),
                      grad_bias = accumulate ? device.guarded({c.g.w[0]}, c.old_bias) : device.guarded(Shape{c.g.w[0]});
  conv2d_forward(device.ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
  conv2d_backward_data(device.ctx(), c.config, c.grad_y_device, c.w_device, grad_x);
  conv2d_backward_weight(device.ctx(), c.config, c.x_device, c.grad_y_device, grad_w, grad_bias, mode);
  return {device.values(y), device.values(grad_x), device.values(grad_w), device.values(grad_bias)};
}

void expect_all(TestDevice& device, const std::string& implementation, const std::string& reason, int64_t count = 3) {
  const std::vector<Conv2dChoice> choices = conv2d_choices(device.ctx());
  EXPECT_EQ(static_cast<int64_t>(choices.size()), count);
  for (const Conv2dChoice& choice : choices) {
    EXPECT_EQ(choice.implementation, implementation) << choice.operation;
    EXPECT_EQ(choice.reason.str(), reason) << choice.operation;
  }
}

struct Layer {
  Shape x, w;
  Conv2dConfig config = {1, 1, false};
};

TEST_P(WinogradTest, IsCloseToDoublePrecision) {
  // Tiles beyond the image; no padding, and ReLU. Neither has square images.
  const Layer layers[] = {{{16, 7, 15, 64}, {64, 3, 3, 64}}, {{22, 14, 10, 64}, {64, 3, 3, 64}, {1, 0, true}}};
  for (size_t i = 0; i < std::size(layers); ++i) {
    const Conv2dCase c = make_case(device, DType::f32, layers[i].x, layers[i].w, layers[i].config, i);
    const bool accumulate = i == 0;
    const auto values = compute(device, c, accumulate ? GradMode::accumulate : GradMode::overwrite);
    const auto initial = [&](const std::vector<float>& old) {
      return accumulate ? std::span<const float>(old) : std::span<const float>();
    };
    Reference y = reference_conv2d_forward(c.g, c.x, c.w);
    add_bias(y, c.bias);
    if (c.config.relu) apply_relu(y);
    const Reference expected[] = {
        y, reference_conv2d_backward_data(c.g, c.grad_y, c.w),
        reference_conv2d_backward_weight(c.g, c.x, c.grad_y, initial(c.old_w)),
        reference_column_sums(c.g.y.numel() / c.g.w[0], c.g.w[0], c.grad_y, initial(c.old_bias))};
    for (size_t k = 0; k < 4; ++k) EXPECT_LT(relative_rms(values[k], expected[k].values), 2e-6) << i << " " << k;
  }
  expect_all(device, "Winograd", "", 6);
}

TEST_P(WinogradTest, ChunksOfImagesAreCloseToDirectConvolution) {
  TestDevice direct(GetParam());
  direct.ctx().reserve_workspace(kPlenty);
  const Shape x{65, 13, 13, 32}, w{48, 3, 3, 32};  // chunks of 22, 22 and 21 images
  for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
    const auto values = compute(device, make_case(device, DType::f32, x, w, {1, 1, true}, 7), mode),
               plain = compute(direct, make_case(direct, DType::f32, x, w, {1, 1, true}, 7), mode);
    for (size_t k = 0; k < 4; ++k) {
      // The gradient of the bias is a sum of 11,000 values that nearly cancel, without Winograd.
      EXPECT_LT(relative_rms(values[k], plain[k]), k < 3 ? 2e-6 : 1e-5) << k;
      EXPECT_TRUE(k == 3 || values[k] != plain[k]) << k;
    }
  }
  expect_all(device, "Winograd", "", 3);
  EXPECT_TRUE(conv2d_choices(direct.ctx()).empty());
}

TEST_P(WinogradTest, GivesTheSameBitsEveryTime) {
  const Conv2dCase c = make_case(device, DType::f32, {33, 13, 13, 32}, {48, 3, 3, 32}, {1, 1, true}, 5);
  const auto first = compute(device, c, GradMode::overwrite);
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(compute(device, c, GradMode::overwrite), first);
  TestDevice other(GetParam(), int64_t{256} << 20, true);
  other.ctx().reserve_workspace(kPlenty + kPlenty / 2);
  const Conv2dCase same = make_case(other, DType::f32, c.g.x, c.g.w, c.config, 5);
  EXPECT_EQ(compute(other, same, GradMode::overwrite), first) << "a larger workspace";
}

TEST_P(WinogradTest, OtherShapesRunDirectlyAndSayWhy) {
  const struct {
    Layer layer;
    const char* reason;
  } cases[] = {
      {{{32, 16, 16, 32}, {32, 3, 3, 32}, {2, 1, false}}, "Winograd is for 3 x 3 windows with stride 1"},
      {{{32, 16, 16, 32}, {32, 5, 5, 32}, {1, 2, false}}, "Winograd is for 3 x 3 windows with stride 1"},
      {{{32, 16, 16, 32}, {40, 3, 3, 32}}, "Winograd is for multiples of 16 channels, at least 32"},
      {{{32, 16, 16, 16}, {32, 3, 3, 16}}, "Winograd is for multiples of 16 channels, at least 32"},
      {{{64, 5, 5, 64}, {64, 3, 3, 64}}, "Winograd computes tiles of 4 x 4 outputs, of which images of 5 x 5 use 39 %"},
      {{{8, 16, 16, 32}, {32, 3, 3, 32}}, "Winograd is not faster for so few outputs"},
  };
  for (const auto& [layer, reason] : cases) {
    device.ctx().forget_plans();
    compute(device, make_case(device, DType::f32, layer.x, layer.w, layer.config, 1), GradMode::overwrite);
    expect_all(device, "direct convolution", reason);
  }
  device.ctx().forget_plans();
  const Conv2dCase c = make_case(device, DType::bf16, {32, 16, 16, 32}, {32, 3, 3, 32}, {1, 1, false}, 1);
  const GuardedTensor y = device.guarded(c.g.y, DType::bf16);
  conv2d_forward(device.ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
  device.synchronize();
  expect_all(device, "direct convolution", "Winograd is for f32, not bf16", 1);
}

TEST_P(WinogradTest, RunsInTheWorkspaceThatItAsksForAndDirectlyWithLess) {
  const Conv2dCase c = make_case(device, DType::f32, {33, 13, 13, 64}, {64, 3, 3, 64}, {1, 1, false}, 3);
  for (const Conv2dPass pass : {Conv2dPass::forward, Conv2dPass::backward_data, Conv2dPass::backward_weight}) {
    int64_t bytes = 0;
    device.ctx().dispatch({"plans", {}, {}}, [&] {
      bytes = cpu::onednn::winograd_bytes(device.ctx(), {pass, c.config, DType::f32, c.g.x, c.g.w, c.g.y, true});
    });
    device.synchronize();
    ASSERT_GT(bytes, 0);
    for (const int64_t less : {0, 1}) {
      device.ctx().forget_plans();
      device.ctx().release_workspace();
      device.ctx().reserve_workspace(bytes - less);
      const GuardedTensor y = device.guarded(c.g.y), grad_x = device.guarded(c.g.x), grad_w = device.guarded(c.g.w),
                          grad_bias = device.guarded(Shape{c.g.w[0]});
      if (pass == Conv2dPass::forward) conv2d_forward(device.ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
      if (pass == Conv2dPass::backward_data)
        conv2d_backward_data(device.ctx(), c.config, c.grad_y_device, c.w_device, grad_x);
      if (pass == Conv2dPass::backward_weight) {
        conv2d_backward_weight(device.ctx(), c.config, c.x_device, c.grad_y_device, grad_w, grad_bias,
                               GradMode::overwrite);
      }
      device.synchronize();
      const std::vector<Conv2dChoice> choices = conv2d_choices(device.ctx());
      ASSERT_EQ(choices.size(), 1U);
      EXPECT_EQ(choices[0].implementation, less == 0 ? "Winograd" : "direct convolution");
      if (less == 0) continue;
      expect_contains(choices[0].reason.str(), fmt::format("Winograd needs a workspace of {} bytes, but {} bytes are "
                                                           "reserved; reserve more with "
                                                           "ExecContext::reserve_workspace ",
                                                           bytes, bytes - 1));
    }
  }
}

TEST(Winograd, IsRefusedByNameWhereOneDnnHasNone) {
  const Reason refusal = winograd_refusal();
  if (refusal.empty()) GTEST_SKIP() << "oneDNN has Winograd on this machine";
  if (!cpu::onednn::library()) {
    expect_contains(refusal.str(), "this build has no oneDNN");
  } else {
    expect_contains(refusal.str(), "oneDNN " + cpu::onednn::library()->version + " has no Winograd convolution");
  }
}

}  // namespace
}  // namespace vitrine::test::winograd_test
