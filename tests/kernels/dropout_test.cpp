// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <limits>

#include "runtime/error.h"
#include "runtime/philox.h"
#include "tests/kernels/shifted.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {
namespace {

class DropoutTest : public DeviceTest {};

/// The contract, one element at a time, with the runtime's Philox.
std::vector<double> expected_dropout(const DropoutConfig& config, int64_t samples, const std::vector<float>& x) {
  std::vector<double> y;
  const auto elements = x.size() / static_cast<size_t>(samples);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t element = i % elements;
    const auto words =
        philox4x32({static_cast<uint32_t>(config.seed), static_cast<uint32_t>(config.seed >> 32)},
                   {static_cast<uint32_t>(element / 4), static_cast<uint32_t>(config.first_sample) + static_cast<uint32_t>(i / elements),
                    static_cast<uint32_t>(config.step), static_cast<uint32_t>(config.layer)});
    const bool kept = static_cast<double>(words[element % 4]) >= static_cast<double>(config.p) * 4294967296.0;
    y.push_back(kept ? static_cast<double>(x[i]) / (1.0 - static_cast<double>(config.p)) : 0.0);
  }
  return y;
}

TEST_F(DropoutTest, MaskIsThatOfTheContract) {
  uint64_t seed = 0x123456789ABCDEFULL;
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{5, 3, 2, 11}, Shape{4, 4100}}) {
    for (const float p : {0.0F, 0.1F, 0.5F, 0.999F}) {
      const DropoutConfig config{p, ++seed, 17, 3, 41};
      const std::vector<float> x = random_floats(shape.numel(), seed);
      const std::vector<double> expected = expected_dropout(config, shape[0], x);
      const GuardedTensor y = device.guarded(shape);
      dropout(ctx(), config, device.tensor(shape, x), y);
      expect_close(device.values(y), expected, 1e-6, 0, shape.str());
      const GuardedTensor in_place = device.guarded(shape, x);
      dropout(ctx(), config, in_place, in_place);
      expect_close(device.values(in_place), expected, 1e-6, 0, "in place");
    }
  }
}

TEST_F(DropoutTest, AnyLengthAndAlignmentDrawsTheSameMask) {
  for (const int64_t elements : {1, 4, 6, 8, 1027, 4096}) {
    const DropoutConfig config{0.5F, 77, 5, 1, 3};
    const Shape shape{3, elements};
    const std::vector<float> x = random_floats(shape.numel(), 21);
    const std::vector<double> expected = expected_dropout(config, shape[0], x);
    for (const int64_t offset : {0, 1, 2, 3}) {
      const Shifted<> in_place(device, shape, offset, x);
      dropout(ctx(), config, in_place, in_place);
      expect_close(in_place.values(), expected, 1e-6, 0, shape.str());
      const Shifted<> y(device, shape, 3 - offset);
      dropout(ctx(), config, Shifted<>(device, shape, offset, x), y);
      expect_close(y.values(), expected, 1e-6, 0, shape.str());
    }
  }
}

TEST_F(DropoutTest, NoSampleIsNoWork) {
  const GuardedTensor none = device.guarded({0, 5});
  dropout(ctx(), {}, none, none);
  EXPECT_TRUE(device.values(none).empty());
}

TEST_F(DropoutTest, AnySplitOfTheBatchDrawsTheSameMask) {
  const Tensor x = device.tensor({7, 37}, std::vector<float>(7 * 37, 1.0F));
  const DropoutConfig whole{0.4F, 9, 2, 1, 100};
  const GuardedTensor y = device.guarded({7, 37});
  const GuardedTensor parts = device.guarded({7, 37});
  dropout(ctx(), whole, x, y);
  int64_t begin = 0;
  for (const int64_t end : {2, 3, 3, 7}) {
    DropoutConfig part = whole;
    part.first_sample += begin;
    dropout(ctx(), part, x.rows(begin, end), parts.view.rows(begin, end));
    begin = end;
  }
  expect_same_bits(device.values(parts), device.values(y));
}

TEST_F(DropoutTest, KeepsTheFractionAskedForAndDropsNan) {
  constexpr int64_t kCount = 200000;
  const std::vector<float> nans(static_cast<size_t>(kCount), std::numeric_limits<float>::quiet_NaN());
  const GuardedTensor y = device.guarded({2, kCount / 2});
  dropout(ctx(), {0.3F, 5, 0, 0, 0}, device.tensor({2, kCount / 2}, nans), y);
  int64_t dropped = 0;
  for (const float v : device.values(y)) dropped += v == 0.0F ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(dropped) / kCount, 0.3, 5 * 0.46 / 447.0);  // five standard deviations
}

TEST_F(DropoutTest, StepLayerAndSeedDrawDifferentMasks) {
  const Tensor x = device.tensor({1, 256}, std::vector<float>(256, 1.0F));
  std::vector<std::vector<float>> masks;
  for (const DropoutConfig& config : {DropoutConfig{0.5F, 1, 0, 0, 0}, DropoutConfig{0.5F, 2, 0, 0, 0}, DropoutConfig{0.5F, 1ULL << 32 | 1, 0, 0, 0},
                                      DropoutConfig{0.5F, 1, 1, 0, 0}, DropoutConfig{0.5F, 1, 0, 1, 0}, DropoutConfig{0.5F, 1, 0, 0, 1}}) {
    const GuardedTensor y = device.guarded({1, 256});
    dropout(ctx(), config, x, y);
    masks.push_back(device.values(y));
    for (size_t i = 0; i + 1 < masks.size(); ++i) EXPECT_NE(masks[i], masks.back());
  }
}

TEST_F(DropoutTest, WrongArgumentsAreRefused) {
  const Tensor x = device.random({2, 8}, 1);
  EXPECT_THROW(dropout(ctx(), {1.0F, 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {-0.1F, 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {std::numeric_limits<float>::quiet_NaN(), 0, 0, 0, 0}, x, x), ConfigError);
  EXPECT_THROW(dropout(ctx(), {}, x, device.empty({16})), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
