// SPDX-License-Identifier: Apache-2.0
// Pools of f16 and bf16: maxima are exact, sums are made in f32 and rounded once.
#include <cmath>
#include <limits>

#include "kernels/pool2d.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/shifted.h"
#include "tests/support/reference_light.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

struct Case {
  Shape x;
  Pool2dConfig config;
};
// Channels below, at and above a vector; windows that overlap, touch and leave gaps; padding.
const Case kCases[] = {{{2, 9, 7, 3}, {3, 2, 0}},    {{1, 8, 8, 8}, {2, 2, 0}},   {{3, 6, 11, 17}, {3, 1, 1}}, {{2, 13, 13, 24}, {3, 2, 1}},
                       {{1, 10, 9, 260}, {2, 3, 0}}, {{1, 5, 5, 300}, {5, 1, 2}}, {{1, 1, 1, 1}, {1, 1, 0}}};

class StoredPool2dTest : public StoredTest {
 protected:
  /// One rounding of a sum of `terms` numbers up to 1, made in f32.
  void expect_sum(const std::vector<float>& actual, const reference::Values& expected, int64_t terms, const std::string& what) {
    const double in_f32 = 4 * std::sqrt(static_cast<double>(terms)) * 0x1p-24 * static_cast<double>(terms);
    expect_close(actual, expected, unit_roundoff(dtype()), in_f32 + half_smallest(dtype()), std::string(dtype_name(dtype())) + " " + what);
  }
};

TEST_P(StoredPool2dTest, MaximaAreExactAndGradientsAreRoundedOnce) {
  uint64_t seed = 0;
  for (const auto& [x_shape, config] : kCases) {
    const std::string what = x_shape.str();
    const Shape y_shape = pool2d_output_shape(config, x_shape);
    const std::vector<float> x = random(x_shape.numel(), ++seed);
    const reference::MaxPool expected = reference::max_pool2d(config, x_shape, x);
    const GuardedTensor y = guarded(y_shape), y_only = guarded(y_shape);
    const Tensor indices = device.empty(y_shape, DType::u8);
    max_pool2d_forward(ctx(), config, tensor(x_shape, x), y, indices);
    expect_close(values(y), expected.y, 0, 0, what);
    const std::vector<uint8_t> positions = device.values<uint8_t>(ConstView(indices));
    for (size_t i = 0; i < positions.size(); ++i) ASSERT_EQ(positions[i], expected.indices[i]) << what << " " << i;
    max_pool2d_forward(ctx(), config, tensor(x_shape, x), y_only, View{});
    expect_close(values(y_only), expected.y, 0, 0, what);

    const std::vector<float> grad_y = random(y_shape.numel(), ++seed);
    const GuardedTensor grad_x = guarded(x_shape);
    max_pool2d_backward(ctx(), config, tensor(y_shape, grad_y), indices, grad_x);
    expect_sum(values(grad_x), reference::max_pool2d_backward(config, x_shape, grad_y, positions), config.window * config.window, what);
  }
}

TEST_P(StoredPool2dTest, MeansAreRoundedOnce) {
  uint64_t seed = 100;
  for (const auto& [x_shape, config] : kCases) {
    const int64_t terms = config.window * config.window;
    const Shape y_shape = pool2d_output_shape(config, x_shape);
    const std::vector<float> x = random(x_shape.numel(), ++seed), grad_y = random(y_shape.numel(), ++seed);
    const GuardedTensor y = guarded(y_shape), grad_x = guarded(x_shape);
    avg_pool2d_forward(ctx(), config, tensor(x_shape, x), y);
    expect_sum(values(y), reference::avg_pool2d(config, x_shape, x), terms, x_shape.str());
    avg_pool2d_backward(ctx(), config, tensor(y_shape, grad_y), grad_x);
    expect_sum(values(grad_x), reference::avg_pool2d_backward(config, x_shape, grad_y), terms, x_shape.str());
  }
  for (const auto& [x_shape, size] : std::vector<std::pair<Shape, std::array<int64_t, 2>>>{
           {{2, 13, 13, 9}, {6, 6}}, {{2, 6, 6, 32}, {6, 6}}, {{1, 5, 3, 270}, {7, 4}}, {{3, 7, 7, 16}, {1, 1}}}) {
    const Shape y_shape{x_shape[0], size[0], size[1], x_shape[3]};
    const std::vector<float> x = random(x_shape.numel(), ++seed), grad_y = random(y_shape.numel(), ++seed);
    const GuardedTensor y = guarded(y_shape), grad_x = guarded(x_shape);
    adaptive_avg_pool2d_forward(ctx(), tensor(x_shape, x), y);
    expect_sum(values(y), reference::adaptive_avg_pool2d(x_shape, y_shape, x), 49, x_shape.str());
    adaptive_avg_pool2d_backward(ctx(), tensor(y_shape, grad_y), grad_x);
    expect_sum(values(grad_x), reference::adaptive_avg_pool2d_backward(x_shape, y_shape, grad_y), 49, x_shape.str());
  }
}

/// The mean of many: a sum kept in 16 bits would be far off.
TEST_P(StoredPool2dTest, LargeMeansAreSummedInF32) {
  const Shape x_shape{1, 60, 60, 5}, y_shape{1, 1, 1, 5};
  const std::vector<float> x = random(x_shape.numel(), 7, 0.5F, 1.0F);
  const reference::Values expected = reference::adaptive_avg_pool2d(x_shape, y_shape, x);
  double narrow_sum = 0;
  for (size_t i = 0; i < x.size(); i += 5) narrow_sum = from_bits(dtype(), to_bits(dtype(), narrow_sum + static_cast<double>(x[i])));
  ASSERT_GT(std::abs(narrow_sum / 3600 - expected[0]), 4 * unit_roundoff(dtype()) * expected[0]) << "the test would not see a sum in 16 bits";
  const GuardedTensor y = guarded(y_shape);
  adaptive_avg_pool2d_forward(ctx(), tensor(x_shape, x), y);
  expect_close(values(y), expected, unit_roundoff(dtype()) + 1e-5, 0);
}

TEST_P(StoredPool2dTest, NanAndInfinityPassOn) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Pool2dConfig config{2, 2, 0};
  for (const int64_t channels : {1, 8, 11}) {
    const Shape x_shape{1, 4, 4, channels}, y_shape{1, 2, 2, channels};
    std::vector<float> x(static_cast<size_t>(x_shape.numel()), 1.0F);
    const auto put = [&](int64_t h, int64_t w, float value) {
      for (int64_t c = 0; c < channels; ++c) x[static_cast<size_t>((h * 4 + w) * channels + c)] = value;
    };
    put(0, 0, kInfinity);
    put(0, 1, kNan);
    put(1, 2, kInfinity);
    put(3, 0, -kInfinity);
    const float largest[] = {kNan, kInfinity, 1.0F, 1.0F};
    const float mean[] = {kNan, kInfinity, -kInfinity, 1.0F};
    const auto spread = [&](const float* four) {
      std::vector<float> all;
      for (int i = 0; i < 4; ++i) all.insert(all.end(), static_cast<size_t>(channels), four[i]);
      return all;
    };
    const GuardedTensor y = guarded(y_shape);
    max_pool2d_forward(ctx(), config, tensor(x_shape, x), y, View{});
    expect_close(values(y), spread(largest), 0, 0, "max");
    avg_pool2d_forward(ctx(), config, tensor(x_shape, x), y);
    expect_close(values(y), spread(mean), 0, 0, "mean");
  }
}

TEST_P(StoredPool2dTest, AnyAlignmentWillDo) {
  const Shape x_shape{2, 7, 5, 19};
  const Pool2dConfig config{3, 2, 1};
  const Shape y_shape = pool2d_output_shape(config, x_shape);
  const std::vector<float> x = random(x_shape.numel(), 21), grad_y = random(y_shape.numel(), 22);
  const GuardedTensor y = guarded(y_shape), mean = guarded(y_shape), grad_x = guarded(x_shape), spread = guarded(x_shape);
  const Tensor indices = device.empty(y_shape, DType::u8);
  max_pool2d_forward(ctx(), config, tensor(x_shape, x), y, indices);
  avg_pool2d_forward(ctx(), config, tensor(x_shape, x), mean);
  max_pool2d_backward(ctx(), config, tensor(y_shape, grad_y), indices, grad_x);
  avg_pool2d_backward(ctx(), config, tensor(y_shape, grad_y), spread);
  for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {0, 3}, {5, 2}}) {
    const auto bits = [&](const GuardedTensor& g) { return device.values<uint16_t>(g); };
    const Shifted<uint16_t> large(device, x_shape, from, to_bits(dtype(), x), dtype()), large_out(device, x_shape, to, dtype());
    const Shifted<uint16_t> small(device, y_shape, from, to_bits(dtype(), grad_y), dtype()), small_out(device, y_shape, to, dtype());
    max_pool2d_forward(ctx(), config, large, small_out, indices);
    EXPECT_EQ(small_out.values(), bits(y));
    avg_pool2d_forward(ctx(), config, large, small_out);
    EXPECT_EQ(small_out.values(), bits(mean));
    max_pool2d_backward(ctx(), config, small, indices, large_out);
    EXPECT_EQ(large_out.values(), bits(grad_x));
    avg_pool2d_backward(ctx(), config, small, large_out);
    EXPECT_EQ(large_out.values(), bits(spread));
  }
}

TEST_P(StoredPool2dTest, TypesThatDifferAreRefused) {
  const Tensor x = device.empty({1, 4, 4, 2}, dtype()), y = device.empty({1, 2, 2, 2});
  const std::string expected = std::string(" is f32, expected ") + dtype_name(dtype());
  expect_error<DtypeError>([&] { max_pool2d_forward(ctx(), {2, 2, 0}, x, y, View{}); }, "max_pool2d_forward: y" + expected);
  expect_error<DtypeError>([&] { avg_pool2d_backward(ctx(), {2, 2, 0}, y, x); }, "avg_pool2d_backward: grad_y" + expected);
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredPool2dTest, ::testing::ValuesIn(kStoredTypes), stored_type_name);

}  // namespace
}  // namespace vitrine::test
