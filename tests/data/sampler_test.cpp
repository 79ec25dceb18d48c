// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace vitrine {
namespace {

TEST(Sampler, DrawsPermutations) {
  for (const int64_t count : {0, 1, 2, 17, 1000}) {
    std::vector<int64_t> order = epoch_order({.seed = 5}, count, 3);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), int64_t{0});
    EXPECT_EQ(order, all);
  }
}

TEST(Sampler, DependsOnSeedAndEpochAlone) {
  const auto order = epoch_order({.seed = 5}, 100, 1);
  EXPECT_EQ(epoch_order({.seed = 5}, 100, 1), order);
  EXPECT_EQ(epoch_order({.drop_last = true, .seed = 5}, 100, 1), order);
  EXPECT_NE(epoch_order({.seed = 5}, 100, 2), order);
  EXPECT_NE(epoch_order({.seed = 6}, 100, 1), order);
}

TEST(Sampler, EveryPlaceIsEquallyLikely) {
  constexpr int kPlaces = 5, kEpochs = 5000;
  int counts[kPlaces][kPlaces] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = epoch_order({.seed = 1}, kPlaces, epoch);
    for (size_t place = 0; place < kPlaces; ++place) ++counts[place][order[place]];
  }
  for (const auto& row : counts) {
    for (const int count : row) EXPECT_NEAR(count, kEpochs / kPlaces, 150);
  }
}

TEST(Sampler, WithoutShufflingTheOrderIsThatOfTheSet) {
  EXPECT_EQ(epoch_order({.shuffle = false, .seed = 5}, 4, 7), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(Sampler, CountsBatches) {
  EXPECT_EQ(batches_per_epoch({}, 10, 5), 2);
  EXPECT_EQ(batches_per_epoch({}, 11, 5), 3);
  EXPECT_EQ(batches_per_epoch({}, 3, 5), 1);
  EXPECT_EQ(batches_per_epoch({.drop_last = true}, 11, 5), 2);
  EXPECT_EQ(batches_per_epoch({.drop_last = true}, 3, 5), 0);
}

}  // namespace
}  // namespace vitrine
