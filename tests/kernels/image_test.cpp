// SPDX-License-Identifier: Apache-2.0
#include "kernels/image.h"

#include <array>
#include <bit>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/philox.h"
#include "tests/support/paths.h"
#include "tests/support/reference_light.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;
const Normalization kNormalization{{0.4914F, 0.4822F, 0.4465F, 0.3F}, {0.2470F, 0.2435F, 0.2616F, 0.5F}};

class ImageTest : public DeviceTest {
 protected:
  std::vector<float> resized(const Normalization& normalization, const Shape& source,
                             const std::vector<uint8_t>& pixels, const Shape& target) {
    const GuardedTensor y = device.guarded(target);
    resize_normalize(ctx(), normalization, device.tensor(source, pixels), y);
    return device.values(y);
  }
};

std::vector<float> resized_on_host(const Shape& source, std::span<const uint8_t> pixels, const Shape& target) {
  std::vector<float> y(static_cast<size_t>(target.numel()));
  resize_normalize_on_host(kNormalization, source, pixels, target, y);
  return y;
}

TEST_F(ImageTest, ResizesLikePyTorchsInterpolate) {
  std::ifstream file(test::source_path("tests/kernels/data/resize.json"));
  ASSERT_TRUE(file) << "missing tests/kernels/data/resize.json: record_resize.py writes it";
  const Json record = Json::parse(file);
  ASSERT_EQ(record.at("cases").size(), 4U);
  for (const Json& c : record.at("cases")) {
    const auto s = c.at("source").get<std::array<int64_t, 3>>();
    const auto t = c.at("target").get<std::array<int64_t, 3>>();
    const std::vector<float> y =
        resized({}, {1, s[0], s[1], s[2]}, c.at("pixels").get<std::vector<uint8_t>>(), {1, t[0], t[1], t[2]});
    expect_close(y, c.at("resized").get<std::vector<double>>(), 0, 1e-6, c.at("target").dump());
  }
}

class ImageDtypeTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, ImageDtypeTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(ImageDtypeTest, EqualsTheReferenceAndTheRoundedHostBitForBit) {
  uint64_t seed = 0;
  for (const auto& [source, target] :
       std::vector<std::pair<Shape, Shape>>{{{3, 32, 32, 3}, {3, 45, 37, 3}},
                                            {{5, 9, 14, 1}, {5, 28, 28, 1}},
                                            {{2, 17, 13, 4}, {2, 5, 8, 4}},
                                            {{2, 1, 1, 3}, {2, 4, 3, 3}},
                                            {{4, 11, 6, 2}, {4, 11, 23, 2}},
                                            {{4, 6, 11, 3}, {4, 23, 11, 3}},
                                            {{2, 5, 6, 3}, {2, 5, 6, 3}},
                                            {{1, 3, 1400, 3}, {1, 4, 2800, 3}}}) {  // wider than a block's memory
    const std::vector<uint8_t> pixels = random_integers<uint8_t>(source.numel(), ++seed, 0, 255);
    const Shape from{source[1], source[2], source[3]}, to{target[1], target[2], target[3]};
    std::vector<float> host;
    for (int64_t n = 0; n < source[0]; ++n) {
      const std::vector<uint8_t> image(pixels.begin() + n * from.numel(), pixels.begin() + (n + 1) * from.numel());
      const std::vector<float> part = resized_on_host(from, image, to);
      expect_close(part, reference::resize_normalize(kNormalization, from, image, to), 1e-6, 2e-5, source.str());
      host.insert(host.end(), part.begin(), part.end());
    }
    const Tensor images = device.tensor(source, pixels);
    const GuardedTensor y = guarded(target);
    resize_normalize(ctx(), kNormalization, images, y);
    expect_same_bits(bits(y), stored_bits(dtype(), host), target.str());
    const ShiftedStored out = shifted(target, 1);
    resize_normalize(ctx(), kNormalization, images, out);
    expect_same_bits(out.bits(), stored_bits(dtype(), host), "shifted " + target.str());
  }
}

/// torchvision's RandomCrop with padding, then RandomHorizontalFlip, on stored pixels.
std::vector<uint8_t> crop_and_flip(const Shape& shape, const std::vector<uint8_t>& pixels,
                                   const AugmentationDraw& draw) {
  std::vector<uint8_t> changed;
  for (int64_t y = 0; y < shape[0]; ++y) {
    for (int64_t x = 0; x < shape[1]; ++x) {
      const int64_t row = y + draw.top, column = (draw.flip ? shape[1] - 1 - x : x) + draw.left;
      const bool inside = row >= 0 && row < shape[0] && column >= 0 && column < shape[1];
      for (int64_t c = 0; c < shape[2]; ++c) {
        changed.push_back(inside ? pixels[static_cast<size_t>((row * shape[1] + column) * shape[2] + c)] : uint8_t{0});
      }
    }
  }
  return changed;
}

/// What augment_normalize computes for one image.
std::vector<float> augmented_on_host(const Augmentation& augmentation, const AugmentationDraw& draw,
                                     const Shape& source, const std::vector<uint8_t>& pixels, const Shape& target) {
  std::vector<float> y = resized_on_host(source, crop_and_flip(source, pixels, draw), target);
  for (int64_t i = 0; i < target[0]; ++i) {
    for (int64_t j = 0; j < target[1]; ++j) {
      const bool cut = i >= draw.cut_top && i < draw.cut_top + augmentation.cutout && j >= draw.cut_left &&
                       j < draw.cut_left + augmentation.cutout;
      for (int64_t c = 0; cut && c < target[2]; ++c) y[static_cast<size_t>((i * target[1] + j) * target[2] + c)] = 0.0F;
    }
  }
  return y;
}

TEST_P(ImageDtypeTest, AugmentedImagesEqualTheHostBitForBit) {
  uint64_t seed = 70;
  const std::vector<Augmentation> augmentations{{true, 0, 0}, {false, 4, 0}, {false, 0, 5}, {true, 3, 6}, {}};
  for (const auto& [source, target] : std::vector<std::pair<Shape, Shape>>{{{6, 12, 12, 3}, {6, 12, 12, 3}},
                                                                           {{5, 28, 28, 1}, {5, 28, 28, 1}},
                                                                           {{5, 9, 14, 1}, {5, 28, 23, 1}},
                                                                           {{3, 40, 40, 3}, {3, 61, 61, 3}},
                                                                           {{4, 11, 6, 2}, {4, 11, 23, 2}}}) {
    for (const Augmentation& augmentation : augmentations) {
      const AugmentationKey key{++seed << 33 | 5, static_cast<int64_t>(seed)};
      const std::vector<uint8_t> pixels = random_integers<uint8_t>(source.numel(), ++seed, 0, 255);
      const std::vector<int32_t> samples = random_integers<int32_t>(source[0], ++seed, 0, INT32_MAX);
      const Shape from{source[1], source[2], source[3]}, to{target[1], target[2], target[3]};
      std::vector<float> host;
      for (int64_t n = 0; n < source[0]; ++n) {
        const std::vector<uint8_t> image(pixels.begin() + n * from.numel(), pixels.begin() + (n + 1) * from.numel());
        const AugmentationDraw draw =
            draw_augmentation(augmentation, key, samples[static_cast<size_t>(n)], to[0], to[1]);
        const std::vector<float> part = augmented_on_host(augmentation, draw, from, image, to);
        host.insert(host.end(), part.begin(), part.end());
      }
      const Tensor images = device.tensor(source, pixels), indices = device.tensor({source[0]}, samples);
      const GuardedTensor y = guarded(target);
      augment_normalize(ctx(), augmentation, key, kNormalization, images, indices, y);
      expect_same_bits(values(y), stored(dtype(), host), target.str());
      const ShiftedStored out = shifted(target, 1);
      augment_normalize(ctx(), augmentation, key, kNormalization, images, indices, out);
      expect_same_bits(out.values(), stored(dtype(), host), "shifted " + target.str());
      // On GPUs the epoch in device memory counts.
      const auto words = std::bit_cast<std::array<int32_t, StepValues::kCount>>(
          StepValues{.epoch_stream = random_stream(RandomPurpose::augmentation, static_cast<uint64_t>(key.epoch))});
      const Tensor step = device.tensor({StepValues::kCount}, std::vector<int32_t>(words.begin(), words.end()));
      augment_normalize(ctx(), augmentation, {key.seed, on_gpu() ? 0 : key.epoch}, kNormalization, images, indices, y,
                        {}, step);
      expect_same_bits(values(y), stored(dtype(), host), "from device memory " + target.str());
    }
  }
}

/// 4,000 draws of each kind; the bounds are five standard deviations.
TEST(AugmentationDraws, AreUniformAndBelongToSampleEpochAndSeed) {
  const Augmentation augmentation{true, 4, 8};
  constexpr int kSamples = 4000;
  std::vector<int> top(9), left(9), cut(32);
  int flips = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    const AugmentationDraw draw = draw_augmentation(augmentation, {7, 3}, sample, 32, 32);
    flips += draw.flip ? 1 : 0;
    ++top.at(static_cast<size_t>(draw.top + 4));
    ++left.at(static_cast<size_t>(draw.left + 4));
    ++cut.at(static_cast<size_t>(draw.cut_top + 4));
    ASSERT_GE(draw.cut_left, -4);
    ASSERT_LT(draw.cut_left, 28);
  }
  const auto expect_share = [](int count, double share) {
    EXPECT_NEAR(count, share * kSamples, 5 * std::sqrt(kSamples * share * (1 - share)));
  };
  expect_share(flips, 0.5);
  for (const int count : top) expect_share(count, 1.0 / 9);
  for (const int count : left) expect_share(count, 1.0 / 9);
  for (const int count : cut) expect_share(count, 1.0 / 32);
  const auto differing = [&](const AugmentationKey& key, int64_t shift) {
    int differ = 0;
    for (int sample = 0; sample < 1000; ++sample) {
      const AugmentationDraw a = draw_augmentation(augmentation, {7, 3}, sample, 32, 32);
      const AugmentationDraw b = draw_augmentation(augmentation, key, sample + shift, 32, 32);
      differ += a.top != b.top || a.left != b.left || a.cut_left != b.cut_left ? 1 : 0;
    }
    return differ;
  };
  EXPECT_EQ(differing({7, 3}, 0), 0);
  EXPECT_GT(differing({8, 3}, 0), 950);
  EXPECT_GT(differing({7, 4}, 0), 950);
  EXPECT_GT(differing({7, 3}, 1), 950);
}

TEST_F(ImageTest, RefusesAugmentationsOutOfRange) {
  const Tensor images = device.tensor({2, 4, 5, 3}, std::vector<uint8_t>(120, 1)),
               samples = device.tensor({2}, std::vector<int32_t>{0, 1});
  const Tensor y = device.empty({2, 8, 8, 3});
  EXPECT_THROW(augment_normalize(ctx(), {false, 5, 0}, {}, {}, images, samples, y), ConfigError);
  EXPECT_THROW(augment_normalize(ctx(), {false, -1, 0}, {}, {}, images, samples, y), ConfigError);
  EXPECT_THROW(augment_normalize(ctx(), {false, 0, 9}, {}, {}, images, samples, y), ConfigError);
  EXPECT_THROW(augment_normalize(ctx(), {true, 0, 0}, {0, -1}, {}, images, samples, y), ConfigError);
  EXPECT_THROW(augment_normalize(ctx(), {true, 0, 0}, {}, {}, images, device.tensor({1}, std::vector<int32_t>{0}), y),
               ShapeError);
  EXPECT_THROW(augment_normalize(ctx(), {true, 0, 0}, {}, {}, images, device.empty({2}), y), DtypeError);
}

TEST_F(ImageTest, AnyAlignmentGivesTheSameBits) {
  for (const auto& [source, target] :
       std::vector<std::pair<Shape, Shape>>{{{2, 5, 6, 3}, {2, 5, 6, 3}}, {{2, 5, 6, 1}, {2, 7, 9, 1}}}) {
    const std::vector<uint8_t> pixels = random_integers<uint8_t>(source.numel(), 6, 0, 255);
    const std::vector<float> expected = resized(kNormalization, source, pixels, target);
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {0, 1}, {3, 3}, {4, 4}}) {
      const Shifted<> y(device, target, out);
      resize_normalize(ctx(), kNormalization, Shifted<uint8_t>(device, source, in, pixels), y);
      expect_same_bits(y.values(), expected, source.str());
    }
  }
}

TEST_F(ImageTest, EqualSizesNormalizeExactly) {
  const Shape shape{3, 16, 18, 3};
  std::vector<uint8_t> pixels;  // every value in every channel
  for (int64_t i = 0; i < shape.numel(); ++i) pixels.push_back(static_cast<uint8_t>(i / 3));
  std::vector<float> expected;
  for (size_t i = 0; i < pixels.size(); ++i) {
    expected.push_back((static_cast<float>(pixels[i]) / 255.0F - kNormalization.mean[i % 3]) /
                       kNormalization.std[i % 3]);
  }
  expect_same_bits(resized(kNormalization, shape, pixels, shape), expected);
}

TEST_F(ImageTest, SizesAndNormalizationMayChangeFromCallToCall) {
  const std::vector<uint8_t> pixels = random_integers<uint8_t>(6 * 6 * 3, 4, 0, 255);
  const std::vector<float> first = resized(kNormalization, {1, 6, 6, 3}, pixels, {1, 9, 9, 3});
  const Normalization other{{0.1F, 0.2F, 0.3F}, {2.0F, 3.0F, 4.0F}};
  expect_close(resized(other, {1, 6, 6, 3}, pixels, {1, 9, 9, 3}),
               reference::resize_normalize(other, {6, 6, 3}, pixels, {9, 9, 3}), 1e-6, 2e-6);
  resized(other, {3, 4, 9, 1}, pixels, {3, 5, 5, 1});
  expect_same_bits(resized(kNormalization, {1, 6, 6, 3}, pixels, {1, 9, 9, 3}), first);
}

TEST_F(ImageTest, BitsDoNotDependOnTheNumberOfThreads) {
  const Shape source{3, 20, 21, 3};
  const Shape target{3, 61, 67, 3};
  const std::vector<uint8_t> pixels = random_integers<uint8_t>(source.numel(), 5, 0, 255);
  TestDevice four(4);
  const GuardedTensor y = four.guarded(target);
  resize_normalize(four.ctx(), kNormalization, four.tensor(source, pixels), y);
  expect_same_bits(four.values(y), resized(kNormalization, source, pixels, target));
}

TEST_F(ImageTest, AcceptsAnEmptyBatch) {
  const GuardedTensor y = device.guarded({0, 6, 6, 3});
  resize_normalize(ctx(), kNormalization, device.empty({0, 4, 4, 3}, DType::u8), y);
  EXPECT_TRUE(device.values(y).empty());
}

TEST_F(ImageTest, RefusesWrongArguments) {
  const Tensor images = device.tensor({2, 4, 4, 3}, std::vector<uint8_t>(96, 1));
  EXPECT_THROW(resize_normalize(ctx(), {}, images, device.empty({1, 4, 4, 3})), ShapeError);
  EXPECT_THROW(resize_normalize(ctx(), {}, images, device.empty({2, 4, 4, 1})), ShapeError);
  EXPECT_THROW(resize_normalize(ctx(), {}, device.empty({2, 4, 4, 5}, DType::u8), device.empty({2, 4, 4, 5})),
               ShapeError);
  EXPECT_THROW(resize_normalize(ctx(), {}, device.empty({2, 4, 4, 3}), device.empty({2, 4, 4, 3})), DtypeError);
  std::vector<float> y(48);
  const std::vector<uint8_t> pixels(47);
  EXPECT_THROW(resize_normalize_on_host({}, {4, 4, 3}, pixels, {4, 4, 3}, y), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
