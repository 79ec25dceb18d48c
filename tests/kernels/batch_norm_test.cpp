// SPDX-License-Identifier: Apache-2.0
#include "kernels/batch_norm.h"

#include <array>
#include <cmath>

#include "kernels/accumulate.h"
#include "runtime/error.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

struct Size {
  int64_t rows, channels;
};
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
  std::vector<double> statistics() const {
    std::vector<double> both = mean;
    both.insert(both.end(), invstd.begin(), invstd.end());
    return both;
  }
};

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

// Divided by their deviation, an error in the last digits of a mean far from zero is large.
TEST_P(BatchNormTest, TheMeanOfEqualValuesIsThatValue) {
  const Size size{77, 21};
  std::vector<float> x = random_floats(size.channels, 5, 0.1F, 900.0F);
  while (x.size() < static_cast<size_t>(size.rows * size.channels))
    x.push_back(x[x.size() - static_cast<size_t>(size.channels)]);
  x = stored(dtype(), x);
  const GuardedTensor moments = device.guarded({2, size.channels});
  batch_norm_moments(ctx(), tensor({size.rows, size.channels}, x), moments);
  std::vector<float> expected(x.begin(), x.begin() + size.channels);
  expected.resize(2 * expected.size());
  const std::vector<float> found = device.values(moments);
  EXPECT_TRUE(on_gpu() || found == expected);
  for (size_t c = 0; c < static_cast<size_t>(size.channels); ++c) EXPECT_FLOAT_EQ(found[c], expected[c]);
}

TEST_P(BatchNormTest, AChannelThatIsNotFiniteKeepsItsRunningStatistics) {
  const Tensor moments = floats({2, 3}, {1.0F, INFINITY, 2.0F, 4.0F, NAN, NAN});
  const GuardedTensor mean = device.guarded({3}, std::vector<float>{0.0F, 5.0F, 6.0F});
  const GuardedTensor variance = device.guarded({3}, std::vector<float>{1.0F, 7.0F, 8.0F});
  batch_norm_statistics(ctx(), kConfig, 5, moments, device.guarded({2, 3}), mean, variance);
  expect_close(device.values(mean), std::vector<float>{0.2F, 5.0F, 6.0F}, 1e-6, 0);
  expect_close(device.values(variance), std::vector<float>{1.0F, 7.0F, 8.0F}, 1e-6, 0);
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

TEST_P(BatchNormTest, RefusesTooFewRows) {
  const Tensor moments = device.empty({2, 3}), statistics = device.empty({2, 3});
  EXPECT_THROW(batch_norm_moments(ctx(), empty({0, 3}), moments), ShapeError);
  EXPECT_THROW(batch_norm_statistics(ctx(), kConfig, 1, moments, statistics, View{}, View{}), ShapeError);
  EXPECT_THROW(batch_norm_sums(ctx(), -1, moments, device.empty({3})), ShapeError);
  EXPECT_THROW(batch_norm_statistics(ctx(), kConfig, 4, moments, moments, View{}, View{}), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
