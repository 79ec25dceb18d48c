// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <array>
#include <bit>
#include <limits>

#include "runtime/error.h"
#include "runtime/philox.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class DropoutTest : public DtypeTest {
 protected:
  /// `expected` in double precision; the f32 result is within 1e-6, then rounded once.
  void expect_dropped(const std::vector<float>& actual, const std::vector<double>& expected, const std::string& what) {
    expect_close(actual, expected, 1e-6 + roundoff(), underflow(), dtype_name(dtype()) + (" " + what));
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, DropoutTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

/// The contract, element by element, with the runtime's Philox.
std::vector<double> expected_dropout(const DropoutConfig& config, int64_t samples, const std::vector<float>& x) {
  std::vector<double> y;
  const auto elements = x.size() / static_cast<size_t>(samples);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t element = i % elements;
    const auto words = philox4x32({static_cast<uint32_t>(config.seed), static_cast<uint32_t>(config.seed >> 32)},
                                  {static_cast<uint32_t>(element / 4),
                                   static_cast<uint32_t>(config.first_sample) + static_cast<uint32_t>(i / elements),
                                   static_cast<uint32_t>(config.step), static_cast<uint32_t>(config.layer)});
    const bool kept = static_cast<double>(words[element % 4]) >= static_cast<double>(config.p) * 4294967296.0;
    y.push_back(kept ? static_cast<double>(x[i]) / (1.0 - static_cast<double>(config.p)) : 0.0);
  }
  return y;
}

TEST_P(DropoutTest, DrawsTheMaskOfTheContractAtAnyLengthAndAlignment) {
  uint64_t seed = 0x123456789ABCDEFULL;
  for (const Shape& shape :
       {Shape{1, 1}, Shape{3, 4}, Shape{3, 7}, Shape{3, 8}, Shape{5, 3, 2, 11}, Shape{3, 1027}, Shape{4, 4100}}) {
    for (const float p : {0.0F, 0.1F, 0.5F, 0.999F}) {
      const DropoutConfig config{p, ++seed, 17, 3, 41};
      const std::vector<float> x = random(shape.numel(), seed);
      const std::vector<double> expected = expected_dropout(config, shape[0], x);
      for (const int64_t offset : {0, 1, 2, 3}) {
        const ShiftedStored y = shifted(shape, 3 - offset);
        dropout(ctx(), config, shifted(shape, offset, x), y);
        expect_dropped(y.values(), expected, shape.str());
      }
    }
  }
}

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

TEST_P(DropoutTest, AcceptsAnEmptyBatch) {
  const GuardedTensor none = guarded({0, 5});
  dropout(ctx(), {}, none, none);
  EXPECT_TRUE(values(none).empty());
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

TEST_P(DropoutTest, RefusesWrongArguments) {
  const Tensor x = tensor({2, 8}, random(16, 1));
  EXPECT_THROW(dropout(ctx(), {1.0F, 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {-0.1F, 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {std::numeric_limits<float>::quiet_NaN(), 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {}, x, empty({16})), ShapeError);
  expect_error<DtypeError>(std::string("dropout: y is ") + dtype_name(other()) + ", expected " + dtype_name(dtype()),
                           [&] {
                             dropout(ctx(), {}, x, device.empty({2, 8}, other()));
                           });
}

/// Every bit: the f32 result, x / (1 - p), rounded once.
class DropoutHalfTest : public DropoutTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, DropoutHalfTest, ::testing::ValuesIn(kHalfTypes), dtype_test_name);

TEST_P(DropoutHalfTest, RoundsTheF32ResultOnce) {
  const DropoutConfig config{.p = 0.3F, .seed = 99, .step = 4, .layer = 2, .first_sample = 5};
  for (const auto& [samples, elements] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 31}, {5, 64}, {2, 4099}, {40, 1030}}) {
    const Shape shape{samples, elements};
    const std::vector<float> x = with_specials(shape.numel(), 13);
    const GuardedTensor mask = device.guarded(shape);
    dropout(ctx(), config, device.tensor(shape, std::vector<float>(x.size(), 1.0F)), mask);
    const std::vector<float> kept = device.values(mask);
    std::vector<float> expected(x.size());
    for (size_t i = 0; i < x.size(); ++i) expected[i] = kept[i] > 0 ? x[i] / (1.0F - config.p) : 0.0F;
    expected = stored(dtype(), expected);
    const GuardedTensor y = guarded(shape);
    dropout(ctx(), config, tensor(shape, x), y);
    expect_equal(values(y), expected, shape.str());
    const ShiftedStored out = shifted(shape, 3);
    dropout(ctx(), config, shifted(shape, 1, x), out);
    expect_equal(out.values(), expected, "shifted " + shape.str());
  }
}

}  // namespace
}  // namespace vitrine::test
