// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <array>
#include <bit>
#include <limits>

#include "runtime/error.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class DropoutTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, DropoutTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(DropoutTest, OnCudaTheValuesReplaceStepAndFirstSample) {
  const Shape shape{3, 37};
  DropoutConfig config{0.4F, 5, 17, 3, 41};
  const std::vector<float> x = random(shape.numel(), 1);
  const GuardedTensor expected = guarded(shape), y = guarded(shape);
  dropout(ctx(), config, tensor(shape, x), expected);
  const auto words = std::bit_cast<std::array<int32_t, StepValues::kCount>>(
      StepValues{.step = config.step, .first_sample = config.first_sample});
  const Tensor step_values = device.tensor({StepValues::kCount}, std::vector<int32_t>(words.begin(), words.end()));
  if (ctx().backend() == Backend::cuda) config.step = config.first_sample = 0;
  dropout(ctx(), config, tensor(shape, x), y, step_values);
  EXPECT_EQ(values(y), values(expected));
  EXPECT_THROW(dropout(ctx(), config, tensor(shape, x), y, step_values.rows(0, 3)), ShapeError);
}

TEST_P(DropoutTest, AnySplitOfTheBatchDrawsTheSameMask) {
  const Tensor x = tensor({7, 37}, std::vector<float>(7 * 37, 1.0F));
  const DropoutConfig whole{0.4F, 9, 2, 1, 100};
  const GuardedTensor y = guarded({7, 37});
  const GuardedTensor parts = guarded({7, 37});
  dropout(ctx(), whole, x, y);
  int64_t begin = 0;
  for (const int64_t end : {2, 3, 3, 7}) {
    DropoutConfig part = whole;
    part.first_sample += begin;
    dropout(ctx(), part, x.rows(begin, end), parts.view.rows(begin, end));
    begin = end;
  }
  expect_same_bits(bits(parts), bits(y));
}

TEST_P(DropoutTest, KeepsTheFractionAskedForAndDropsNan) {
  constexpr int64_t kCount = 200000;
  const std::vector<float> nans(static_cast<size_t>(kCount), std::numeric_limits<float>::quiet_NaN());
  const GuardedTensor y = guarded({2, kCount / 2});
  dropout(ctx(), {0.3F, 5, 0, 0, 0}, tensor({2, kCount / 2}, nans), y);
  int64_t dropped = 0;
  for (const float v : values(y)) dropped += v == 0.0F ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(dropped) / kCount, 0.3, 5 * 0.46 / 447.0);  // five standard deviations
}

TEST_P(DropoutTest, StepLayerAndSeedDrawDifferentMasks) {
  const Tensor x = tensor({1, 256}, std::vector<float>(256, 1.0F));
  std::vector<std::vector<float>> masks;
  for (const DropoutConfig& config :
       {DropoutConfig{0.5F, 1, 0, 0, 0}, DropoutConfig{0.5F, 2, 0, 0, 0}, DropoutConfig{0.5F, 1ULL << 32 | 1, 0, 0, 0},
        DropoutConfig{0.5F, 1, 1, 0, 0}, DropoutConfig{0.5F, 1, 0, 1, 0}, DropoutConfig{0.5F, 1, 0, 0, 1}}) {
    const GuardedTensor y = guarded({1, 256});
    dropout(ctx(), config, x, y);
    masks.push_back(values(y));
    for (size_t i = 0; i + 1 < masks.size(); ++i) EXPECT_NE(masks[i], masks.back());
  }
}

TEST_P(DropoutTest, RefusesProbabilitiesOutsideOfZeroToOne) {
  const Tensor x = tensor({2, 8}, random(16, 1));
  EXPECT_THROW(dropout(ctx(), {1.0F, 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {-0.1F, 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {std::numeric_limits<float>::quiet_NaN(), 0, 0, 0, 0}, x, x), ConfigError);
}

}  // namespace
}  // namespace vitrine::test
