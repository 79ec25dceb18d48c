// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool2d.h"

#include <cmath>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "runtime/error.h"
#include "tests/support/layer_reference.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

struct Case {
  Pool2dConfig config;
  Shape x;
};

/// Windows that overlap, touch and leave gaps, with and without padding; H != W; channels below, at and above the
/// vector width and several vectors.
std::vector<Case> cases() {
  return {
      {{2, 2, 0}, {3, 8, 6, 32}},  {{2, 2, 0}, {2, 7, 9, 5}},    {{3, 2, 0}, {2, 13, 11, 19}},
      {{3, 2, 1}, {1, 10, 7, 8}},  {{3, 1, 1}, {2, 5, 8, 3}},    {{2, 3, 1}, {2, 9, 11, 9}},
      {{5, 1, 2}, {1, 6, 7, 17}},  {{1, 1, 0}, {2, 3, 4, 16}},   {{1, 2, 0}, {1, 5, 6, 10}},
      {{4, 3, 2}, {2, 12, 5, 1}},  {{2, 2, 1}, {1, 1, 1, 7}},    {{16, 5, 8}, {1, 21, 18, 9}},
      {{3, 3, 0}, {5, 3, 3, 24}},  {{8, 3, 4}, {1, 19, 12, 40}}, {{2, 3, 0}, {1, 10, 9, 260}},
      {{5, 1, 2}, {1, 5, 5, 300}}, {{3, 2, 0}, {2, 9, 7, 3}},    {{2, 2, 0}, {1, 8, 8, 8}},
      {{3, 1, 1}, {3, 6, 11, 17}}, {{3, 2, 1}, {2, 13, 13, 24}}, {{1, 1, 0}, {1, 1, 1, 1}},
      {{3, 2, 1}, {2, 7, 8, 45}},  {{2, 2, 0}, {3, 9, 7, 70}},   {{3, 3, 0}, {2, 10, 11, 33}},
  };
}

class Pool2dTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Pool2dTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

/// Few distinct values, which every dtype holds, so that windows have equal maxima; with `specials`, NaN and infinities
/// among them.
std::vector<float> values_with_ties(int64_t count, uint64_t seed, bool specials) {
  std::vector<float> values;
  for (const int32_t v : random_integers<int32_t>(count, seed, -3, 3)) values.push_back(static_cast<float>(v) * 0.5F);
  if (!specials) return values;
  for (size_t i = 3; i < values.size(); i += 23) values[i] = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 5; i < values.size(); i += 13) values[i] = -std::numeric_limits<float>::infinity();
  for (size_t i = 8; i < values.size(); i += 41) values[i] = std::numeric_limits<float>::infinity();
  return values;
}

TEST_P(Pool2dTest, MaxBackwardAlsoSumsTheChannelsOfTheGradient) {
  std::vector<Case> all = cases();
  all.push_back({{2, 2, 0}, {6, 32, 32, 32}});  // several strips
  all.push_back({{3, 2, 0}, {4, 27, 27, 64}});
  for (const auto& [config, shape] : all) {
    const Shape y_shape = pool2d_output_shape(config, shape);
    const int64_t channels = shape[3];
    const GuardedTensor y = guarded(y_shape), alone = guarded(shape), grad_x = guarded(shape);
    const Tensor indices = device.empty(y_shape, DType::u8), grad_y = tensor(y_shape, random(y_shape.numel(), 42));
    max_pool2d_forward(ctx(), config, tensor(shape, random(shape.numel(), 41)), y, indices);
    max_pool2d_backward(ctx(), config, grad_y, indices, alone);
    const std::vector<float> before = random_floats(channels, 43), expected = values(alone);
    for (const int64_t workspace : {int64_t{0}, int64_t{8} << 20}) {
      device.ctx().release_workspace();
      if (workspace > 0) device.ctx().reserve_workspace(workspace);
      for (const bool adds : {false, true}) {
        const std::string what = fmt::format("{}, workspace {}{}", shape.str(), workspace, adds ? ", added" : "");
        const GuardedTensor sums = adds ? device.guarded({channels}, before) : device.guarded({channels});
        max_pool2d_backward(ctx(), config, grad_y, indices, grad_x, sums,
                            adds ? GradMode::accumulate : GradMode::overwrite);
        expect_same_bits(bits(grad_x), bits(alone), what);
        expect_rounded(device.values(sums),
                       reference_column_sums(shape.numel() / channels, channels, expected,
                                             adds ? std::span<const float>(before) : std::span<const float>()),
                       dtype_name(dtype()) + (" sums of " + what));
      }
    }
  }
}

TEST_P(Pool2dTest, SumsOfChannelsHaveTheSameBitsForAnyNumberOfThreads) {
  if (on_gpu()) GTEST_SKIP() << "a GPU has no threads to choose";
  for (const Pool2dConfig& config : {Pool2dConfig{2, 2, 0}, Pool2dConfig{3, 2, 1}}) {
    for (const int64_t channels : {5, 40, 70}) {
      const Shape shape{6, 33, 20, channels}, y_shape = pool2d_output_shape(config, shape);
      std::vector<float> first;
      for (const int threads : {1, 2, 3}) {
        TestDevice on(threads);
        const Tensor indices = on.empty(y_shape, DType::u8), grad_x = on.empty(shape, dtype()),
                     sums = on.empty({channels});
        max_pool2d_forward(on.ctx(), config, stored_tensor(on, dtype(), shape, random(shape.numel(), 51)),
                           on.empty(y_shape, dtype()), indices);
        max_pool2d_backward(on.ctx(), config, stored_tensor(on, dtype(), y_shape, random(y_shape.numel(), 52)), indices,
                            grad_x, sums);
        const std::vector<float> values = on.values(ConstView(sums));
        if (threads == 1) first = values;
        expect_same_bits(values, first, shape.str());
      }
    }
  }
}

TEST_P(Pool2dTest, AllMinusInfinityGivesTheFirstPosition) {
  const Shape shape{1, 3, 3, 9};
  const float lowest = -std::numeric_limits<float>::infinity();
  const Tensor x = tensor(shape, std::vector<float>(81, lowest));
  const GuardedTensor y = guarded({1, 2, 2, 9});
  const GuardedTensor indices = device.guarded({1, 2, 2, 9}, DType::u8);
  max_pool2d_forward(ctx(), {2, 2, 1}, x, y, indices);
  expect_close(values(y), std::vector<float>(36, lowest), 0, 0);
  std::vector<int> expected;
  for (const int position : {3, 2, 1, 0}) expected.insert(expected.end(), 9, position);
  expect_close(device.values<uint8_t>(indices), expected, 0, 0);
}

/// Also for a NaN or an infinity in the input or in the gradient, and for zeros with a sign. An index of 255 looks like
/// one that was not written.
TEST_P(Pool2dTest, AMergedReluHasTheBitsOfSeparatePasses) {
  uint64_t seed = 700;
  for (const auto& [config, shape] : cases()) {
    if (config.window > kMostReluWindow) continue;
    const Shape y_shape = pool2d_output_shape(config, shape);
    for (const bool specials : {false, true}) {
      std::vector<float> x = values_with_ties(shape.numel(), ++seed, specials), grad = random(y_shape.numel(), ++seed);
      for (size_t i = 0; i < x.size(); i += 2) x[i] = -std::abs(x[i]);
      for (size_t i = 1; specials && i < grad.size(); i += 5)
        grad[i] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : -0.0F;
      const Tensor from = tensor(shape, x), masked = tensor(y_shape, grad);
      const GuardedTensor y = guarded(y_shape), y_apart = guarded(y_shape), y_evaluated = guarded(y_shape);
      const GuardedTensor grad_x = guarded(shape), grad_apart = guarded(shape);
      const Tensor indices = device.empty(y_shape, DType::u8), indices_apart = device.empty(y_shape, DType::u8);
      max_pool2d_forward(ctx(), config, from, y_apart, indices_apart);
      relu_forward(ctx(), y_apart, y_apart);
      max_pool2d_forward(ctx(), config, from, y, indices, true);
      max_pool2d_forward(ctx(), config, from, y_evaluated, View{}, true);
      expect_same_bits(bits(y), bits(y_apart), shape.str());
      expect_same_bits(bits(y_evaluated), bits(y_apart), shape.str() + " without indices");
      max_pool2d_backward(ctx(), config, tensor(y_shape, grad), indices, grad_x);
      relu_backward(ctx(), y_apart, masked, masked);
      max_pool2d_backward(ctx(), config, masked, indices_apart, grad_apart);
      expect_same_bits(bits(grad_x), bits(grad_apart), shape.str() + " backward");
      const std::vector<uint8_t> positions = device.values<uint8_t>(ConstView(indices)),
                                 expected = device.values<uint8_t>(ConstView(indices_apart));
      const std::vector<float> outputs = unchecked_values(y);
      for (size_t i = 0; i < outputs.size(); ++i)
        ASSERT_EQ(positions[i], outputs[i] > 0.0F ? expected[i] : kCutOff) << shape.str() << ", element " << i;
    }
  }
}

TEST_P(Pool2dTest, RefusesWindowsThatDoNotFit) {
  EXPECT_THROW(max_pool2d_forward(ctx(), {17, 1, 8}, empty({2, 6, 5, 3}), empty({2, 3, 2, 3}), View{}),
               UnsupportedError);
  const Tensor wide = empty({1, 16, 16, 1}), one = empty({1, 1, 1, 1});
  EXPECT_THROW(max_pool2d_forward(ctx(), {16, 1, 0}, wide, one, device.empty({1, 1, 1, 1}, DType::u8), true),
               UnsupportedError);
  for (const Pool2dConfig& config : {Pool2dConfig{7, 1, 0}, Pool2dConfig{2, 1, 2}, Pool2dConfig{2, 0, 0}})
    EXPECT_THROW(pool2d_output_shape(config, {2, 6, 5, 3}), ShapeError);
  EXPECT_THROW(pool2d_output_shape({2, 2, 0}, {6, 5, 3}), ShapeError);
}

class Pool2dHalfTest : public Pool2dTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Pool2dHalfTest, ::testing::ValuesIn(kHalfTypes), dtype_test_name);

/// The mean of many: a sum in 16 bits would be far off.
TEST_P(Pool2dHalfTest, AddsLargeMeansInF32) {
  const Shape x_shape{1, 60, 60, 5}, y_shape{1, 1, 1, 5};
  const std::vector<float> x = random(x_shape.numel(), 7, 0.5F, 1.0F);
  const std::vector<double> expected = reference_adaptive_avg_pool2d(1, 1, {x_shape, {x.begin(), x.end()}}).values;
  double narrow_sum = 0;
  for (size_t i = 0; i < x.size(); i += 5)
    narrow_sum = from_bits(dtype(), to_bits(dtype(), narrow_sum + static_cast<double>(x[i])));
  ASSERT_GT(std::abs(narrow_sum / 3600 - expected[0]), 4 * unit_roundoff(dtype()) * expected[0])
      << "the test would not see a sum in 16 bits";
  const GuardedTensor y = guarded(y_shape);
  adaptive_avg_pool2d_forward(ctx(), tensor(x_shape, x), y);
  expect_close(values(y), expected, unit_roundoff(dtype()) + 1e-5, 0);
}

}  // namespace
}  // namespace vitrine::test
