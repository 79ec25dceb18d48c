// SPDX-License-Identifier: Apache-2.0
#include "kernels/batch_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/accumulate.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

struct Size {
  int64_t rows, channels;
};
constexpr Size kSizes[] = {{2, 1}, {3, 5}, {64, 16}, {65, 17}, {700, 33}, {1111, 72}, {40, 300}};
constexpr BatchNormConfig kConfig{.eps = 1e-3F, .momentum = 0.2F};

/// In double precision, of values as they are stored.
struct Expected {
  std::vector<double> mean, squares, invstd;

  Expected(Size size, const std::vector<float>& x)
      : mean(static_cast<size_t>(size.channels)), squares(mean), invstd(mean) {
    const auto rows = static_cast<double>(size.rows);
    for (size_t i = 0; i < x.size(); ++i) mean[i % mean.size()] += static_cast<double>(x[i]) / rows;
    for (size_t i = 0; i < x.size(); ++i)
      squares[i % mean.size()] += std::pow(static_cast<double>(x[i]) - mean[i % mean.size()], 2);
    for (size_t c = 0; c < mean.size(); ++c)
      invstd[c] = 1.0 / std::sqrt(squares[c] / rows + static_cast<double>(kConfig.eps));
  }
  std::vector<double> statistics() const { return joined(mean, invstd); }
  std::vector<double> moments() const { return joined(mean, squares); }
  static std::vector<double> joined(std::vector<double> a, const std::vector<double>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
};

std::vector<float> to_floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

class BatchNormTest : public DtypeTest {
 protected:
  void SetUp() override { ctx().reserve_workspace(int64_t{1} << 20); }
  /// Channels with means far from zero compared with their deviations: sums of squares would lose all digits.
  std::vector<float> activations(Size size, uint64_t seed) {
    std::vector<float> x = random_floats(size.rows * size.channels, seed);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] += static_cast<float>(i % static_cast<size_t>(size.channels) % 7) * 100.0F;
    return stored(dtype(), x);
  }
  Tensor floats(const Shape& shape, const std::vector<float>& values) { return device.tensor(shape, values); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, BatchNormTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(BatchNormTest, MomentsKeepTheirDigitsFarFromZero) {
  for (const Size size : kSizes) {
    const std::vector<float> x = activations(size, 1);
    const GuardedTensor moments = device.guarded({2, size.channels});
    batch_norm_moments(ctx(), tensor({size.rows, 1, 1, size.channels}, x), moments);
    expect_close(device.values(moments), Expected(size, x).moments(), 2e-4, 1e-5, std::to_string(size.rows));
  }
}

TEST_P(BatchNormTest, StatisticsOfSeveralDevicesAreThoseOfOne) {
  const Size size{90, 21};
  const std::vector<float> x = activations(size, 2);
  // The last device has no rows.
  const std::array<int64_t, 4> rows = {40, 1, 49, 0};
  std::vector<Tensor> moments;
  std::vector<float> sums(static_cast<size_t>(size.channels)), squares(sums);
  int64_t first = 0;
  for (const int64_t count : rows) {
    moments.push_back(floats({2, size.channels}, std::vector<float>(static_cast<size_t>(2 * size.channels))));
    const auto begin = x.begin() + first * size.channels;
    if (count > 0)
      batch_norm_moments(ctx(), tensor({count, size.channels}, {begin, begin + count * size.channels}), moments.back());
    const GuardedTensor own = device.guarded({size.channels});
    batch_norm_sums(ctx(), count, moments.back(), own);
    const std::vector<float> values = device.values(own);
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += values[c];
    first += count;
  }
  for (size_t d = 0; d < rows.size(); ++d) {
    batch_norm_recenter(ctx(), rows[d], size.rows, floats({size.channels}, sums), moments[d]);
    const std::vector<float> values = device.values(ConstView(moments[d].rows(1, 2)));
    for (size_t c = 0; c < squares.size(); ++c) squares[c] += values[c];
  }
  device.write(moments[3].rows(1, 2), squares);
  const Expected expected(size, x);
  const std::vector<float> old_mean = random_floats(size.channels, 3),
                           old_var = random_floats(size.channels, 4, 0.5F, 2.0F);
  const GuardedTensor mean = device.guarded({size.channels}, old_mean),
                      variance = device.guarded({size.channels}, old_var);
  const GuardedTensor statistics = device.guarded({2, size.channels});
  batch_norm_statistics(ctx(), kConfig, size.rows, moments[3], statistics, mean, variance);
  expect_close(device.values(statistics), expected.statistics(), 2e-5, 1e-5, "statistics");
  std::vector<double> new_mean, new_var;
  for (size_t c = 0; c < sums.size(); ++c) {
    new_mean.push_back(0.8 * static_cast<double>(old_mean[c]) + 0.2 * expected.mean[c]);
    new_var.push_back(0.8 * static_cast<double>(old_var[c]) +
                      0.2 * expected.squares[c] / static_cast<double>(size.rows - 1));
  }
  expect_close(device.values(mean), new_mean, 1e-5, 1e-6, "running mean");
  expect_close(device.values(variance), new_var, 2e-5, 1e-6, "running variance");
}

TEST_P(BatchNormTest, AChannelThatIsNotFiniteKeepsItsRunningStatistics) {
  const Tensor moments = floats({2, 3}, {1.0F, INFINITY, 2.0F, 4.0F, NAN, NAN});
  const GuardedTensor mean = device.guarded({3}, std::vector<float>{0.0F, 5.0F, 6.0F});
  const GuardedTensor variance = device.guarded({3}, std::vector<float>{1.0F, 7.0F, 8.0F});
  batch_norm_statistics(ctx(), kConfig, 5, moments, device.guarded({2, 3}), mean, variance);
  expect_close(device.values(mean), std::vector<float>{0.2F, 5.0F, 6.0F}, 1e-6, 0);
  expect_close(device.values(variance), std::vector<float>{1.0F, 7.0F, 8.0F}, 1e-6, 0);
}

TEST_P(BatchNormTest, ForwardNormalizes) {
  for (const Size size : kSizes) {
    for (const bool relu : {false, true}) {
      const std::vector<float> x = random(size.rows * size.channels, 5);
      const Expected expected(size, x);
      const std::vector<float> weight = random_floats(size.channels, 6), bias = random_floats(size.channels, 7);
      const GuardedTensor y = guarded({size.rows, size.channels});
      BatchNormConfig config = kConfig;
      config.relu = relu;
      batch_norm_forward(ctx(), config, tensor({size.rows, size.channels}, x),
                         floats({2, size.channels}, to_floats(expected.statistics())), floats({size.channels}, weight),
                         floats({size.channels}, bias), y);
      std::vector<double> wanted;
      for (size_t i = 0; i < x.size(); ++i) {
        const size_t c = i % weight.size();
        const double value =
            (static_cast<double>(x[i]) - expected.mean[c]) * expected.invstd[c] * static_cast<double>(weight[c]);
        wanted.push_back(std::max(relu ? 0.0 : -1e9, value + static_cast<double>(bias[c])));
      }
      expect_close(values(y), wanted, 4e-6 + roundoff(), 4e-6 + underflow(), relu ? "with ReLU" : "");
    }
  }
}

TEST_P(BatchNormTest, EvaluationUsesTheRunningStatistics) {
  const std::vector<float> mean = random_floats(19, 1), variance = random_floats(19, 2, 0.1F, 3.0F);
  const GuardedTensor statistics = device.guarded({2, 19});
  batch_norm_running(ctx(), kConfig, floats({19}, mean), floats({19}, variance), statistics);
  std::vector<double> expected(mean.begin(), mean.end());
  for (const float v : variance)
    expected.push_back(1.0 / std::sqrt(static_cast<double>(v) + static_cast<double>(kConfig.eps)));
  expect_close(device.values(statistics), expected, 1e-6, 0);
}

TEST_P(BatchNormTest, BackwardIsTheDerivative) {
  for (const Size size : kSizes) {
    const std::vector<float> x = random(size.rows * size.channels, 8), gradient = random(size.rows * size.channels, 9);
    const Expected expected(size, x);
    const auto channels = static_cast<size_t>(size.channels);
    const std::vector<float> weight = random_floats(size.channels, 10);
    const Shape shape{size.rows, size.channels};
    const Tensor statistics = floats({2, size.channels}, to_floats(expected.statistics()));
    std::vector<double> sum(channels), dot(channels);
    const auto normal = [&](size_t i) {
      return (static_cast<double>(x[i]) - expected.mean[i % channels]) * expected.invstd[i % channels];
    };
    for (size_t i = 0; i < x.size(); ++i) {
      sum[i % channels] += static_cast<double>(gradient[i]);
      dot[i % channels] += static_cast<double>(gradient[i]) * normal(i);
    }
    const double slack = 1e-6 * static_cast<double>(size.rows + 10);
    for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
      const float before = mode == GradMode::accumulate ? 2.0F : 0.0F;
      const std::vector<float> content(channels, mode == GradMode::accumulate ? 2.0F : 77.0F);
      const GuardedTensor sums = device.guarded({2, size.channels});
      const GuardedTensor to_weight = device.guarded({size.channels}, content),
                          to_bias = device.guarded({size.channels}, content);
      batch_norm_backward_sums(ctx(), tensor(shape, x), tensor(shape, gradient), statistics, sums, to_weight, to_bias,
                               mode);
      expect_close(device.values(sums), Expected::joined(sum, dot), 1e-5, slack, "sums");
      std::vector<double> added_sum = sum, added_dot = dot;
      for (double& v : added_sum) v += static_cast<double>(before);
      for (double& v : added_dot) v += static_cast<double>(before);
      expect_close(device.values(to_bias), added_sum, 1e-5, slack, "gradient of the bias");
      expect_close(device.values(to_weight), added_dot, 1e-5, slack, "gradient of the weight");
    }
    std::vector<double> wanted;
    const auto rows = static_cast<double>(size.rows);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t c = i % channels;
      wanted.push_back(static_cast<double>(weight[c]) * expected.invstd[c] *
                       (static_cast<double>(gradient[i]) - sum[c] / rows - normal(i) * dot[c] / rows));
    }
    const Tensor sums = floats({2, size.channels}, to_floats(Expected::joined(sum, dot)));
    const GuardedTensor grad_x = guarded(shape);
    batch_norm_backward_data(ctx(), tensor(shape, x), tensor(shape, gradient), statistics,
                             floats({size.channels}, weight), sums, size.rows, grad_x);
    expect_close(values(grad_x), wanted, 1e-5 + roundoff(), 3e-5 + underflow(), "gradient of the input");
  }
}

TEST(BatchNorm, SumsHaveTheSameBitsForAnyNumberOfThreads) {
  const std::vector<float> x = random_floats(333 * 72, 11), gradient = random_floats(333 * 72, 12);
  std::vector<float> first_moments, first_sums;
  for (const int threads : {1, 2, 3}) {
    TestDevice device(threads);
    device.ctx().reserve_workspace(int64_t{1} << 20);
    const Tensor moments = device.empty({2, 72}), sums = device.empty({2, 72}), weight = device.empty({72}),
                 bias = device.empty({72});
    batch_norm_moments(device.ctx(), device.tensor({333, 72}, x), moments);
    batch_norm_backward_sums(device.ctx(), device.tensor({333, 72}, x), device.tensor({333, 72}, gradient), moments,
                             sums, weight, bias, GradMode::overwrite);
    const std::vector<float> moments_values = device.values(ConstView(moments)),
                             sums_values = device.values(ConstView(sums));
    if (threads == 1) {
      first_moments = moments_values;
      first_sums = sums_values;
    }
    expect_same_bits(moments_values, first_moments);
    expect_same_bits(sums_values, first_sums);
  }
}

TEST_P(BatchNormTest, RefusesWhatDoesNotFit) {
  const Tensor x = tensor({4, 3}, random(12, 1)), moments = device.empty({2, 3}), sums = device.empty({3});
  EXPECT_THROW(batch_norm_moments(ctx(), x, device.empty({2, 4})), ShapeError);
  EXPECT_THROW(batch_norm_moments(ctx(), empty({0, 3}), moments), ShapeError);
  EXPECT_THROW(batch_norm_moments(ctx(), x, device.empty({2, 3}, DType::f16)), DtypeError);
  EXPECT_THROW(batch_norm_statistics(ctx(), kConfig, 1, moments, device.empty({2, 3}), View{}, View{}), ShapeError);
  EXPECT_THROW(batch_norm_statistics(ctx(), kConfig, 4, moments, moments, View{}, View{}), ShapeError);
  EXPECT_THROW(batch_norm_sums(ctx(), -1, moments, sums), ShapeError);
  EXPECT_THROW(batch_norm_forward(ctx(), kConfig, x, moments, sums, device.empty({3}, DType::bf16), empty({4, 3})),
               DtypeError);
  EXPECT_THROW(batch_norm_forward(ctx(), kConfig, x, moments, sums, device.empty({2}), empty({4, 3})), ShapeError);
  EXPECT_THROW(batch_norm_backward_data(ctx(), x, empty({4, 3}), moments, sums, device.empty({2, 3}), 4, x),
               ShapeError);
}

}  // namespace
}  // namespace vitrine::test
