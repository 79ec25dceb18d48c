// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/scheme.h"

#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

using Sizes = std::vector<std::vector<int64_t>>;

Sizes sizes_of(const char* split, int64_t batch_size, int accumulate, int device_count) {
  return plan_batch(parse_split(split), batch_size, accumulate, device_count).sizes;
}

TEST(EqualParts, DifferByAtMostOneLargerFirst) {
  EXPECT_EQ(equal_parts(10, 4), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(equal_parts(2, 5), (std::vector<int64_t>{1, 1, 0, 0, 0}));
  EXPECT_EQ(equal_parts(0, 2), (std::vector<int64_t>{0, 0}));
}

TEST(WeightedParts, TiesInTheLargestRemainderGoToTheLowerIndex) {
  EXPECT_EQ(weighted_parts(64, {2, 3, 3}), (std::vector<int64_t>{16, 24, 24}));
  EXPECT_EQ(weighted_parts(10, {1, 1, 2}), (std::vector<int64_t>{3, 2, 5}));  // 2.5, 2.5, 5
  EXPECT_EQ(weighted_parts(2, {4, 1, 1}), (std::vector<int64_t>{2, 0, 0}));   // thirds left over everywhere
  EXPECT_EQ(weighted_parts(2, {1, 4, 1}), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(weighted_parts(7, {1, 6, 3}), (std::vector<int64_t>{1, 4, 2}));  // 0.7, 4.2, 2.1
}

TEST(WeightedParts, DecimalWeightsCountAsWritten) {
  EXPECT_EQ(weighted_parts(30, {0.1, 0.2}), (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(weighted_parts(2, {0.4, 0.1, 0.1}), (std::vector<int64_t>{2, 0, 0}));
}

TEST(WeightedParts, ZeroWeightGetsNothing) {
  EXPECT_EQ(weighted_parts(7, {0, 1, 0, 1}), (std::vector<int64_t>{0, 4, 0, 3}));
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    std::vector<double> weights(1 + random() % 6);
    for (double& w : weights) w = random() % 3 == 0 ? 0.0 : static_cast<double>(random() % 1000) / 37.0;
    weights[random() % weights.size()] = 1.0;
    const int64_t total = random() % 300;
    const std::vector<int64_t> sizes = weighted_parts(total, weights);
    ASSERT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), total);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t d = 0; d < weights.size(); ++d) {
      if (weights[d] == 0.0) {
        EXPECT_EQ(sizes[d], 0);
      }
      EXPECT_LT(std::abs(static_cast<double>(sizes[d]) - static_cast<double>(total) * weights[d] / sum), 1.0);
    }
  }
}

TEST(PlanBatch, ShareOfDevice0IsPerStepAndSplitOverMicroBatches) {
  EXPECT_EQ(sizes_of("gpu0=4", 16, 2, 3), (Sizes{{2, 3, 3}, {2, 3, 3}}));
  EXPECT_EQ(sizes_of("gpu0=1", 158, 1, 6), (Sizes{{1, 32, 32, 31, 31, 31}}));
  EXPECT_EQ(sizes_of("gpu0=5", 16, 2, 3), (Sizes{{3, 3, 2}, {2, 3, 3}}));
}

TEST(PlanBatch, ShareOfDevice0MayBeZeroOrAboveAnEqualShare) {
  EXPECT_EQ(sizes_of("gpu0=0", 10, 1, 3), (Sizes{{0, 5, 5}}));
  EXPECT_EQ(sizes_of("gpu0=12", 16, 1, 3), (Sizes{{12, 2, 2}}));
  EXPECT_EQ(sizes_of("gpu0=16", 16, 1, 3), (Sizes{{16, 0, 0}}));
}

TEST(PlanBatch, ShortLastBatchBelowTheShareGoesToDevice0) {
  EXPECT_EQ(sizes_of("gpu0=8", 5, 1, 3), (Sizes{{5, 0, 0}}));
}

TEST(PlanBatch, WeightsApplyToEachMicroBatch) { EXPECT_EQ(sizes_of("2,3,3", 16, 2, 3), (Sizes{{2, 3, 3}, {2, 3, 3}})); }

TEST(PlanBatch, MoreDevicesThanSamplesLeaveSomeEmpty) {
  EXPECT_EQ(sizes_of("equal", 2, 2, 3), (Sizes{{1, 0, 0}, {1, 0, 0}}));
}

TEST(PlanBatch, CoversEverySampleOnceInOrder) {
  std::mt19937 random(11);
  for (int i = 0; i < 1000; ++i) {
    const int device_count = static_cast<int>(1 + random() % 6), accumulate = static_cast<int>(1 + random() % 4);
    const int64_t batch_size = 1 + random() % 200;
    Split split;
    split.kind = static_cast<Split::Kind>(random() % 3);
    if (split.kind == Split::Kind::weights) {
      for (int d = 0; d < device_count; ++d) split.weights.push_back(static_cast<double>(random() % 5));
      split.weights[random() % split.weights.size()] = 1.0;
    } else if (split.kind == Split::Kind::gpu0) {
      split.gpu0 = device_count == 1 ? batch_size : static_cast<int64_t>(random()) % (batch_size + 1);
    }
    ASSERT_NO_THROW(validate_split(split, batch_size, device_count));
    const BatchPlan plan = plan_batch(split, batch_size, accumulate, device_count);
    ASSERT_EQ(plan.micro_batches(), accumulate);
    int64_t position = 0, by_device = 0;
    for (int k = 0; k < accumulate; ++k) {
      EXPECT_TRUE(k == 0 || plan.micro_batch_size(k) <= plan.micro_batch_size(k - 1));
      for (size_t d = 0; d < static_cast<size_t>(device_count); ++d) {
        const int64_t size = plan.sizes[static_cast<size_t>(k)][d];
        ASSERT_GE(size, 0);
        ASSERT_EQ(plan.first[static_cast<size_t>(k)][d], position);
        position += size;
        ASSERT_LE(size, plan.largest_slice(static_cast<int>(d)));
      }
    }
    EXPECT_EQ(position, batch_size);
    for (int d = 0; d < device_count; ++d) by_device += plan.device_samples(d);
    EXPECT_EQ(by_device, batch_size);
    if (split.kind == Split::Kind::gpu0) {
      EXPECT_EQ(plan.device_samples(0), split.gpu0);
    }
  }
}

TEST(ParseSplit, ReadsWhatItPrints) {
  for (const char* text : {"equal", "2,3,3", "gpu0=4", "0,1", "0.5,1.25", "gpu0=0"})
    EXPECT_EQ(parse_split(text).str(), text);
}

TEST(ParseSplit, RefusesInvalidSplits) {
  for (const char* text :
       {"", "eq", "gpu0=", "gpu0=-1", "gpu0=2.5", "gpu0=x", "2,,3", "2,3,", "2,-3", "nan", "inf,1", "2 3"}) {
    EXPECT_NE(error_of<ConfigError>([&] { parse_split(text); }).find("gpu0=N"), std::string::npos) << text;
  }
}

TEST(ValidateSplit, NamesTheMismatch) {
  const auto error = [](const char* split, int64_t batch_size, int device_count) {
    return error_of<ConfigError>([&] { validate_split(parse_split(split), batch_size, device_count); });
  };
  expect_contains(error("2,3", 8, 3), "2 weights for 3 devices;");
  expect_contains(error("0,0", 8, 2), "no device a sample");
  expect_contains(error("gpu0=9", 8, 2), "more than the batch size 8");
  expect_contains(error("gpu0=3", 8, 1), "only one");
  EXPECT_EQ(error("gpu0=8", 8, 1), "");
  EXPECT_EQ(error("gpu0=8", 8, 2), "");
  EXPECT_EQ(error("equal", 1, 5), "");
}

TEST(SchemePreset, HaveTheirKnownSettings) {
  const Scheme dp = scheme_preset("dp"), criterion = scheme_preset("criterion"), ddp = scheme_preset("ddp"),
               balanced = scheme_preset("balanced");
  EXPECT_TRUE(dp.staging == Staging::device0 && dp.loss_at == LossAt::gathered && dp.reduce == ReducerKind::gpu0);
  EXPECT_TRUE(balanced.staging == Staging::device0 && balanced.loss_at == LossAt::gathered &&
              balanced.reduce == ReducerKind::gpu0);
  EXPECT_TRUE(criterion.staging == Staging::device0 && criterion.loss_at == LossAt::parallel &&
              criterion.reduce == ReducerKind::gpu0);
  EXPECT_TRUE(ddp.staging == Staging::host && ddp.loss_at == LossAt::parallel && ddp.reduce == ReducerKind::allreduce);
  for (const Scheme& scheme : {dp, criterion, ddp}) EXPECT_EQ(scheme.split.kind, Split::Kind::equal);
  EXPECT_EQ(scheme_preset("fsdp").shard, scheme_preset("zero3").shard);
}

TEST(SchemePreset, BalancedWithoutItsShareIsRefused) {
  expect_contains(error_of<ConfigError>([] { validate_split(scheme_preset("balanced").split, 8, 2); }),
                  "Scheme::split gpu0=N");
}

TEST(SchemePreset, AnUnknownNameListsTheKnownOnes) {
  expect_contains(error_of<ConfigError>([] { scheme_preset("zero4"); }),
                  "dp, balanced, criterion, ddp, zero1, zero2, zero3");
}

}  // namespace
}  // namespace vitrine
