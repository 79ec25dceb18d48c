// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/philox.h"
#include "tests/data/counted_set.h"

namespace vitrine {
namespace {

using test::samples_of;

void expect_permutation(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order = samples_of(EpochOrder({.seed = seed}, count, epoch));
  std::sort(order.begin(), order.end());
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(order, all) << count << " samples, seed " << seed << ", epoch " << epoch;
}

TEST(EpochOrder, IsAPermutationOfEverySize) {
  for (int64_t count = 0; count <= 300; ++count) expect_permutation(count, 5, 3);
  for (const int64_t count : {1000, 1023, 1024, 1025, 4095, 10'007, 65'536, 65'537, 99'999})
    expect_permutation(count, 7, 0);
  for (int64_t epoch = 0; epoch < 50; ++epoch) expect_permutation(97, static_cast<uint64_t>(epoch) << 33, epoch);
}

TEST(EpochOrder, DependsOnlyOnSeedAndEpoch) {
  const auto order = samples_of(EpochOrder({.seed = 5}, 100, 1));
  EXPECT_EQ(samples_of(EpochOrder({.seed = 5}, 100, 1)), order);
  EXPECT_EQ(samples_of(EpochOrder({.drop_last = true, .seed = 5}, 100, 1)), order);
  EXPECT_NE(samples_of(EpochOrder({.seed = 5}, 100, 2)), order);
  EXPECT_NE(samples_of(EpochOrder({.seed = 6}, 100, 1)), order);
  EXPECT_NE(samples_of(EpochOrder({.seed = 5 + (uint64_t{1} << 32)}, 100, 1)), order);
}

/// Deviation of the counts from a uniform distribution, in standard deviations of chi-square.
double unevenness(const std::vector<int>& counts) {
  const double expected = std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
  const auto space = static_cast<double>(counts.size() - 1);
  return (chi_square - space) / std::sqrt(2 * space);
}

TEST(EpochOrder, EverySampleIsEquallyLikelyAtEveryPosition) {
  for (const int64_t count : {2, 3, 5, 10, 17}) {
    const auto places = static_cast<size_t>(count);
    std::vector<int> counts(places * places);
    for (int64_t epoch = 0; epoch < 500 * count; ++epoch) {
      const auto order = samples_of(EpochOrder({.seed = 1}, count, epoch));
      for (size_t place = 0; place < places; ++place) ++counts[place * places + static_cast<size_t>(order[place])];
    }
    EXPECT_LT(std::abs(unevenness(counts)), 4.0) << count;
  }
}

TEST(EpochOrder, EveryOrderOfAFewSamplesIsEquallyLikely) {
  for (const int64_t count : {3, 4, 5, 6}) {
    std::map<std::vector<int64_t>, int> seen;
    const int64_t orders = count == 3 ? 6 : count == 4 ? 24 : count == 5 ? 120 : 720;
    for (int64_t epoch = 0; epoch < 100 * orders; ++epoch) ++seen[samples_of(EpochOrder({.seed = 3}, count, epoch))];
    ASSERT_EQ(static_cast<int64_t>(seen.size()), orders);
    std::vector<int> counts;
    for (const auto& [order, times] : seen) counts.push_back(times);
    EXPECT_LT(std::abs(unevenness(counts)), 4.0) << count;
  }
}

// A sample says nothing about the next one: differences of neighbors are distributed like those of independent draws.
TEST(EpochOrder, NeighborsAreIndependent) {
  constexpr int64_t kCount = 100'000;
  constexpr size_t kBins = 20;
  const EpochOrder order({.seed = 2}, kCount, 0);
  std::vector<int> counts(kBins * kBins);
  for (int64_t place = 0; place + 1 < kCount; ++place) {
    const auto bin = [&](int64_t p) { return static_cast<size_t>(order[p] * static_cast<int64_t>(kBins) / kCount); };
    ++counts[bin(place) * kBins + bin(place + 1)];
  }
  EXPECT_LT(std::abs(unevenness(counts)), 4.0);
}

// The cost: constant memory, and fewer than two passes through the network per sample.
TEST(EpochOrder, NeedsConstantMemoryAndNearlyConstantTime) {
  static_assert(std::is_trivially_copyable_v<EpochOrder> && sizeof(EpochOrder) <= 64);
  for (const int64_t count :
       {int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{100'000'000}, int64_t{1} << 40, INT64_MAX / 2}) {
    const EpochOrder order({.seed = 4}, count, 0);
    EXPECT_GE(order.domain(), count);
    EXPECT_LT(static_cast<double>(order.domain() - count), std::sqrt(static_cast<double>(count)) + 1) << count;
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t sample = order[count / 100 * i];
      EXPECT_TRUE(sample >= 0 && sample < count) << sample;
    }
  }
}

// Regression: parameter i and epoch i drew the same numbers.
TEST(EpochOrder, UsesSeparateRandomStreams) {
  EXPECT_NE(random_stream(RandomPurpose::initialization, 3), random_stream(RandomPurpose::shuffle, 3));
  EXPECT_NE(random_stream(RandomPurpose::synthetic_data, 3), random_stream(RandomPurpose::shuffle, 3));
  EXPECT_EQ(random_stream(RandomPurpose::initialization, (uint64_t{1} << kRandomStreamBits) - 1) >> kRandomStreamBits,
            0U);
  EXPECT_EQ(random_stream(RandomPurpose::shuffle, (uint64_t{1} << kRandomStreamBits) - 1) >> kRandomStreamBits,
            0x736875U);
  PhiloxSequence weights(1, random_stream(RandomPurpose::initialization, 3)),
      order(1, random_stream(RandomPurpose::shuffle, 3));
  int equal = 0;
  for (int i = 0; i < 1000; ++i) equal += weights.next_u32() == order.next_u32() ? 1 : 0;
  EXPECT_EQ(equal, 0);
}

TEST(EpochOrder, WithoutShufflingIsTheOrderOfTheSet) {
  EXPECT_EQ(samples_of(EpochOrder({.shuffle = false, .seed = 5}, 4, 7)), (std::vector<int64_t>{0, 1, 2, 3}));
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
