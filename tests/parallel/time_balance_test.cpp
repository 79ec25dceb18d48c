// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/time_balance.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

TEST(SliceTime, FitsALineThroughTheMeasurements) {
  const std::vector<SliceMeasurement> exact = {{10, 0.7}, {20, 1.2}, {40, 2.2}};
  const SliceTime time = fit_slice_time(exact);
  EXPECT_NEAR(time.fixed, 0.2, 1e-12);
  EXPECT_NEAR(time.each, 0.05, 1e-12);
  EXPECT_NEAR(time.seconds_for(100), 5.2, 1e-12);
  EXPECT_EQ(time.seconds_for(0), 0.0);
}

TEST(SliceTime, HasNoNegativePart) {
  const SliceTime steep =
      fit_slice_time(std::vector<SliceMeasurement>{{10, 0.1}, {20, 1.0}});  // its line begins below 0
  EXPECT_EQ(steep.fixed, 0.0);
  EXPECT_GT(steep.each, 0.0);
  const SliceTime falling = fit_slice_time(std::vector<SliceMeasurement>{{10, 1.0}, {20, 0.5}});
  EXPECT_EQ(falling.fixed, 0.0);
  EXPECT_NEAR(falling.each, 0.05, 1e-12);
  const SliceTime one = fit_slice_time(std::vector<SliceMeasurement>{{10, 1.0}, {0, 0.0}});
  EXPECT_NEAR(one.each, 0.1, 1e-12);
  EXPECT_THROW(fit_slice_time(std::vector<SliceMeasurement>{{0, 0.0}}), ConfigError);
}

TEST(BalanceTime, FindsTheFastestSlices) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0.01, 1.0);
  for (int round = 0; round < 50; ++round) {
    std::vector<SliceTime> times;
    for (int d = 0; d < 3; ++d) times.push_back({uniform(random) * 3, uniform(random)});
    const std::vector<int64_t> most = {12, 4 + static_cast<int64_t>(random() % 9), 12};
    const std::vector<int64_t> slices = balance_time(times, 12, most);
    EXPECT_EQ(std::accumulate(slices.begin(), slices.end(), int64_t{0}), 12);
    double best = 1e9;
    for (int64_t a = 0; a <= 12; ++a) {
      for (int64_t b = 0; a + b <= 12; ++b) {
        if (b <= most[1]) best = std::min(best, longest_time(times, std::vector<int64_t>{a, b, 12 - a - b}));
      }
    }
    EXPECT_NEAR(longest_time(times, slices), best, 1e-12);
    for (size_t d = 0; d < 3; ++d) EXPECT_LE(slices[d], most[d]);
  }
}

}  // namespace
}  // namespace vitrine
