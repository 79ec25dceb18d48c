// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool2d.h"

#include <limits>

#include "runtime/error.h"
#include "tests/support/shifted.h"
#include "tests/support/device_fixture.h"
#include "tests/support/reference_light.h"

namespace vitrine::test {
namespace {

class Pool2dTest : public DeviceTest {};

struct Case {
  Pool2dConfig config;
  Shape x;
};

/// Window, stride and pad in all relations; H != W; channels below, at and beside the vector width.
std::vector<Case> cases() {
  return {
      {{2, 2, 0}, {3, 8, 6, 32}}, {{2, 2, 0}, {2, 7, 9, 5}},    {{3, 2, 0}, {2, 13, 11, 19}}, {{3, 2, 1}, {1, 10, 7, 8}},
      {{3, 1, 1}, {2, 5, 8, 3}},  {{2, 3, 1}, {2, 9, 11, 9}},   {{5, 1, 2}, {1, 6, 7, 17}},   {{1, 1, 0}, {2, 3, 4, 16}},
      {{1, 2, 0}, {1, 5, 6, 10}}, {{4, 3, 2}, {2, 12, 5, 1}},   {{2, 2, 1}, {1, 1, 1, 7}},    {{16, 5, 8}, {1, 21, 18, 9}},
      {{3, 3, 0}, {5, 3, 3, 24}}, {{8, 3, 4}, {1, 19, 12, 40}},
  };
}

/// Few distinct values, so that windows have equal maxima; NaN and infinities among them.
std::vector<float> values_with_ties(int64_t count, uint64_t seed, bool specials) {
  std::vector<float> values;
  for (const int32_t v : random_integers<int32_t>(count, seed, -3, 3)) values.push_back(static_cast<float>(v) * 0.5F);
  if (!specials) return values;
  for (size_t i = 3; i < values.size(); i += 23) values[i] = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 5; i < values.size(); i += 13) values[i] = -std::numeric_limits<float>::infinity();
  for (size_t i = 8; i < values.size(); i += 41) values[i] = std::numeric_limits<float>::infinity();
  return values;
}

TEST_F(Pool2dTest, MaxForwardTakesTheFirstMaximumAndNanWins) {
  uint64_t seed = 0;
  for (const auto& [config, shape] : cases()) {
    for (const bool specials : {false, true}) {
      const std::vector<float> x = values_with_ties(shape.numel(), ++seed, specials);
      const reference::MaxPool expected = reference::max_pool2d(config, shape, x);
      const Shape y_shape = pool2d_output_shape(config, shape);
      const Tensor x_device = device.tensor(shape, x);
      const GuardedTensor y = device.guarded(y_shape);
      const GuardedTensor indices = device.guarded(y_shape, DType::u8);
      max_pool2d_forward(ctx(), config, x_device, y, config.window < 16 ? indices.view : View{});
      expect_close(device.values(y), expected.y, 0, 0, shape.str());
      if (config.window < 16) expect_close(device.values<uint8_t>(indices), expected.indices, 0, 0, shape.str());
      const GuardedTensor without = device.guarded(y_shape);
      max_pool2d_forward(ctx(), config, x_device, without, View{});
      expect_close(device.values(without), expected.y, 0, 0, "without indices");
    }
  }
}

TEST_F(Pool2dTest, AllMinusInfinityGivesTheFirstPosition) {
  const Shape shape{1, 3, 3, 9};
  const float lowest = -std::numeric_limits<float>::infinity();
  const Tensor x = device.tensor(shape, std::vector<float>(81, lowest));
  const GuardedTensor y = device.guarded({1, 2, 2, 9});
  const GuardedTensor indices = device.guarded({1, 2, 2, 9}, DType::u8);
  max_pool2d_forward(ctx(), {2, 2, 1}, x, y, indices);
  expect_close(device.values(y), std::vector<float>(36, lowest), 0, 0);
  std::vector<int> expected;
  for (const int position : {3, 2, 1, 0}) expected.insert(expected.end(), 9, position);
  expect_close(device.values<uint8_t>(indices), expected, 0, 0);
}

TEST_F(Pool2dTest, MaxBackwardSendsEachGradientToItsMaximumAndAddsOverlaps) {
  uint64_t seed = 100;
  for (const auto& [config, shape] : cases()) {
    const Shape y_shape = pool2d_output_shape(config, shape);
    const std::vector<float> x = values_with_ties(shape.numel(), ++seed, false);
    std::vector<uint8_t> indices;
    for (const int i : reference::max_pool2d(config, shape, x).indices) indices.push_back(static_cast<uint8_t>(i));
    const std::vector<float> grad_y = random_floats(y_shape.numel(), ++seed);
    const GuardedTensor grad_x = device.guarded(shape);
    max_pool2d_backward(ctx(), config, device.tensor(y_shape, grad_y), device.tensor(y_shape, indices), grad_x);
    expect_close(device.values(grad_x), reference::max_pool2d_backward(config, shape, grad_y, indices), 1e-6, 1e-6, shape.str());
  }
}

TEST_F(Pool2dTest, AverageCountsThePadding) {
  uint64_t seed = 200;
  for (const auto& [config, shape] : cases()) {
    const Shape y_shape = pool2d_output_shape(config, shape);
    const std::vector<float> x = random_floats(shape.numel(), ++seed);
    const std::vector<float> grad_y = random_floats(y_shape.numel(), ++seed);
    const GuardedTensor y = device.guarded(y_shape);
    const GuardedTensor grad_x = device.guarded(shape);
    avg_pool2d_forward(ctx(), config, device.tensor(shape, x), y);
    avg_pool2d_backward(ctx(), config, device.tensor(y_shape, grad_y), grad_x);
    expect_close(device.values(y), reference::avg_pool2d(config, shape, x), 1e-6, 1e-6, shape.str());
    expect_close(device.values(grad_x), reference::avg_pool2d_backward(config, shape, grad_y), 1e-6, 1e-6, shape.str());
  }
}

TEST_F(Pool2dTest, AdaptiveAverageUsesPyTorchsWindows) {
  uint64_t seed = 300;
  const std::vector<std::pair<Shape, Shape>> pairs{
      {{2, 6, 6, 32}, {2, 6, 6, 32}}, {{3, 7, 5, 9}, {3, 1, 1, 9}},  {{2, 10, 7, 11}, {2, 3, 4, 11}},    {{1, 5, 3, 8}, {1, 7, 6, 8}},
      {{2, 13, 1, 3}, {2, 6, 6, 3}},  {{2, 12, 9, 8}, {2, 1, 1, 8}}, {{1, 21, 11, 160}, {1, 2, 1, 160}}, {{2, 19, 19, 21}, {2, 3, 2, 21}}};
  for (const auto& [shape, y_shape] : pairs) {
    const std::vector<float> x = random_floats(shape.numel(), ++seed);
    const std::vector<float> grad_y = random_floats(y_shape.numel(), ++seed);
    const GuardedTensor y = device.guarded(y_shape);
    const GuardedTensor grad_x = device.guarded(shape);
    adaptive_avg_pool2d_forward(ctx(), device.tensor(shape, x), y);
    adaptive_avg_pool2d_backward(ctx(), device.tensor(y_shape, grad_y), grad_x);
    expect_close(device.values(y), reference::adaptive_avg_pool2d(shape, y_shape, x), 1e-6, 1e-6, shape.str());
    expect_close(device.values(grad_x), reference::adaptive_avg_pool2d_backward(shape, y_shape, grad_y), 1e-6, 1e-6, shape.str());
  }
}

TEST_F(Pool2dTest, AnyAlignmentWillDo) {
  uint64_t seed = 400;
  for (const auto& [config, shape] : {Case{{3, 2, 1}, {2, 7, 6, 8}}, Case{{2, 2, 0}, {1, 5, 6, 4}}, Case{{4, 3, 1}, {1, 9, 8, 12}}}) {
    const Shape y_shape = pool2d_output_shape(config, shape);
    const Shape adaptive{shape[0], 2, 3, shape[3]};
    const std::vector<float> x = values_with_ties(shape.numel(), ++seed, false);
    const std::vector<float> grad_y = random_floats(y_shape.numel(), ++seed);
    const std::vector<float> grad_adaptive = random_floats(adaptive.numel(), ++seed);
    const reference::MaxPool expected = reference::max_pool2d(config, shape, x);
    const std::vector<uint8_t> positions(expected.indices.begin(), expected.indices.end());
    struct Offsets {
      int64_t large, small, indices;
    };
    for (const auto& [large, small, index] : {Offsets{1, 0, 0}, Offsets{0, 3, 0}, Offsets{0, 0, 1}, Offsets{2, 2, 2}, Offsets{4, 4, 4}}) {
      const Shifted<> x_shifted(device, shape, large, x);
      const Shifted<> grad_x(device, shape, large);
      const Shifted<> y(device, y_shape, small);
      const Shifted<uint8_t> indices(device, y_shape, index);
      const Shifted<> grad_shifted(device, y_shape, small, grad_y);
      max_pool2d_forward(ctx(), config, x_shifted, y, indices);
      expect_close(y.values(), expected.y, 0, 0, shape.str());
      expect_close(indices.values(), expected.indices, 0, 0, shape.str());
      max_pool2d_backward(ctx(), config, grad_shifted, Shifted<uint8_t>(device, y_shape, index, positions), grad_x);
      expect_close(grad_x.values(), reference::max_pool2d_backward(config, shape, grad_y, positions), 1e-6, 1e-6, shape.str());
      avg_pool2d_forward(ctx(), config, x_shifted, y);
      expect_close(y.values(), reference::avg_pool2d(config, shape, x), 1e-6, 1e-6, shape.str());
      avg_pool2d_backward(ctx(), config, grad_shifted, grad_x);
      expect_close(grad_x.values(), reference::avg_pool2d_backward(config, shape, grad_y), 1e-6, 1e-6, shape.str());
      const Shifted<> y_adaptive(device, adaptive, small);
      adaptive_avg_pool2d_forward(ctx(), x_shifted, y_adaptive);
      expect_close(y_adaptive.values(), reference::adaptive_avg_pool2d(shape, adaptive, x), 1e-6, 1e-6, shape.str());
      adaptive_avg_pool2d_backward(ctx(), Shifted<>(device, adaptive, small, grad_adaptive), grad_x);
      expect_close(grad_x.values(), reference::adaptive_avg_pool2d_backward(shape, adaptive, grad_adaptive), 1e-6, 1e-6, shape.str());
    }
  }
}

TEST_F(Pool2dTest, NanPassesThroughAverages) {
  std::vector<float> x(2 * 4 * 4 * 3, 1.0F);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  const Tensor x_device = device.tensor({2, 4, 4, 3}, x);
  const GuardedTensor y = device.guarded({2, 2, 2, 3});
  avg_pool2d_forward(ctx(), {2, 2, 0}, x_device, y);
  std::vector<float> expected(24, 1.0F);
  expected[0] = x[0];
  expect_close(device.values(y), expected, 0, 0);
}

TEST_F(Pool2dTest, NoSampleIsNoWork) {
  const GuardedTensor x = device.guarded({0, 4, 4, 3});
  const GuardedTensor y = device.guarded({0, 2, 2, 3});
  max_pool2d_forward(ctx(), {2, 2, 0}, x, y, View{});
  max_pool2d_backward(ctx(), {2, 2, 0}, y, device.guarded({0, 2, 2, 3}, DType::u8), x);
  avg_pool2d_forward(ctx(), {2, 2, 0}, x, y);
  avg_pool2d_backward(ctx(), {2, 2, 0}, y, x);
  adaptive_avg_pool2d_forward(ctx(), x, y);
  adaptive_avg_pool2d_backward(ctx(), y, x);
  EXPECT_TRUE(device.values(x).empty());
}

TEST_F(Pool2dTest, WrongArgumentsAreRefused) {
  const Tensor x = device.random({2, 6, 5, 3}, 1);
  const Tensor y = device.empty({2, 3, 2, 3});
  EXPECT_THROW(max_pool2d_forward(ctx(), {3, 2, 0}, x, y, View{}), ShapeError);
  EXPECT_THROW(max_pool2d_forward(ctx(), {17, 1, 8}, x, y, View{}), UnsupportedError);
  EXPECT_THROW(max_pool2d_forward(ctx(), {2, 2, 0}, x, y, device.empty({2, 3, 2, 3})), DtypeError);
  EXPECT_THROW(pool2d_output_shape({7, 1, 0}, {2, 6, 5, 3}), ShapeError);
  EXPECT_THROW(pool2d_output_shape({2, 1, 2}, {2, 6, 5, 3}), ShapeError);
  EXPECT_THROW(pool2d_output_shape({2, 0, 0}, {2, 6, 5, 3}), ShapeError);
  EXPECT_THROW(pool2d_output_shape({2, 2, 0}, {6, 5, 3}), ShapeError);
  EXPECT_THROW(adaptive_avg_pool2d_forward(ctx(), x, device.empty({1, 3, 2, 3})), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
