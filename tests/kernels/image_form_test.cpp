// SPDX-License-Identifier: Apache-2.0
#include "kernels/image_form.h"

#include "kernels/image.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

/// Blocks with and without padding, a last block that is cut off, positions past the image, a border that no block
/// covers, and channels of zeros.
const ImageForm kForms[] = {
    {.height = 35, .width = 43, .channels = 3, .block = 4, .pad = 2, .rows = 10, .columns = 12, .depth = 48},
    {.height = 9, .width = 14, .channels = 3, .block = 2, .pad = 3, .rows = 9, .columns = 10, .depth = 16},
    {.height = 11, .width = 6, .channels = 1, .block = 3, .pad = 0, .rows = 3, .columns = 1, .depth = 9},
    {.height = 12, .width = 12, .channels = 3, .block = 1, .pad = 0, .rows = 12, .columns = 12, .depth = 8},
    {.height = 5, .width = 7, .channels = 2, .block = 1, .pad = 1, .rows = 7, .columns = 9, .depth = 3},
};

/// Calls body(packed, image) with the index of each element and of its pixel, or -1 if it is none.
template <class Body>
void for_elements(const ImageForm& f, int64_t samples, const Body& body) {
  int64_t at = 0;
  for (int64_t n = 0; n < samples; ++n) {
    for (int64_t i = 0; i < f.rows; ++i) {
      for (int64_t j = 0; j < f.columns; ++j) {
        for (int64_t k = 0; k < f.depth; ++k, ++at) {
          const int64_t c = k % f.channels, v = k / f.channels % f.block, u = k / f.channels / f.block;
          const int64_t y = f.block * i + u - f.pad, x = f.block * j + v - f.pad;
          const bool inside = u < f.block && y >= 0 && y < f.height && x >= 0 && x < f.width;
          body(static_cast<size_t>(at), inside ? ((n * f.height + y) * f.width + x) * f.channels + c : int64_t{-1});
        }
      }
    }
  }
}

std::vector<float> packed_on_host(const ImageForm& form, int64_t samples, const std::vector<float>& images) {
  std::vector<float> packed(static_cast<size_t>(form.packed_shape(samples).numel()));
  for_elements(form, samples,
               [&](size_t at, int64_t pixel) { packed[at] = pixel < 0 ? 0.0F : images[static_cast<size_t>(pixel)]; });
  return packed;
}

class ImageFormTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, ImageFormTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(ImageFormTest, PacksEveryPixelBitForBit) {
  uint64_t seed = 0;
  for (const ImageForm& form : kForms) {
    for (const int64_t samples : {1, 5}) {
      const std::vector<float> images = random(form.image_shape(samples).numel(), ++seed);
      const GuardedTensor packed = guarded(form.packed_shape(samples));
      pack_images(ctx(), form, tensor(form.image_shape(samples), images), packed);
      expect_same_bits(bits(packed), stored_bits(dtype(), packed_on_host(form, samples, images)), form.str());
    }
  }
}

TEST_P(ImageFormTest, ResizedAndAugmentedImagesArePackedBitForBit) {
  const Normalization normalization{{0.4914F, 0.4822F, 0.4465F, 0.3F}, {0.2470F, 0.2435F, 0.2616F, 0.5F}};
  uint64_t seed = 20;
  for (const ImageForm& form : kForms) {
    constexpr int64_t kSamples = 4;
    const Shape plain = form.image_shape(kSamples);
    // A row of the wide one has no room in a block's shared memory.
    for (const Shape& source : {Shape{kSamples, 8, 9, form.channels}, Shape{kSamples, 2, 4097, form.channels}, plain}) {
      const Tensor images = device.tensor(source, random_integers<uint8_t>(source.numel(), ++seed, 0, 255));
      const Tensor samples = device.tensor({kSamples}, random_integers<int32_t>(kSamples, ++seed, 0, INT32_MAX));
      const Augmentation augmentation{true, 2, 4};
      const AugmentationKey key{seed, 3};
      for (const bool augmented : {false, true}) {
        const auto compute = [&](const View& y, const ImageForm& wanted) {
          if (augmented) {
            augment_normalize(ctx(), augmentation, key, normalization, images, samples, y, wanted);
          } else {
            resize_normalize(ctx(), normalization, images, y, wanted);
          }
        };
        const std::string what = form.str() + " from " + source.str() + (augmented ? ", augmented" : "");
        const GuardedTensor y = guarded(plain), packed = guarded(form.packed_shape(kSamples));
        compute(y, {});
        compute(packed, form);
        const std::vector<uint32_t> expected = stored_bits(dtype(), packed_on_host(form, kSamples, values(y)));
        expect_same_bits(bits(packed), expected, what);
        const ShiftedStored out = shifted(form.packed_shape(kSamples), 1);
        compute(out, form);
        expect_same_bits(out.bits(), expected, "shifted " + what);
        if (HasFailure()) return;
      }
    }
  }
}

class UnpackTest : public DeviceTest {};

TEST_F(UnpackTest, TakesEveryPixelAndDropsTheRest) {
  uint64_t seed = 40;
  for (const ImageForm& form : kForms) {
    constexpr int64_t kSamples = 3;
    const std::vector<float> packed = random_floats(form.packed_shape(kSamples).numel(), ++seed);
    const std::vector<float> old = random_floats(form.image_shape(kSamples).numel(), ++seed);
    std::vector<float> expected(old.size());
    for_elements(form, kSamples, [&](size_t at, int64_t pixel) {
      if (pixel >= 0) expected[static_cast<size_t>(pixel)] = packed[at];
    });
    const Tensor from = device.tensor(form.packed_shape(kSamples), packed);
    const GuardedTensor images = device.guarded(form.image_shape(kSamples)),
                        sums = device.guarded(form.image_shape(kSamples), old);
    unpack_images(ctx(), form, from, images, GradMode::overwrite);
    EXPECT_EQ(device.values(images), expected) << form.str();
    unpack_images(ctx(), form, from, sums, GradMode::accumulate);
    for (size_t i = 0; i < old.size(); ++i) expected[i] += old[i];
    EXPECT_EQ(device.values(sums), expected) << form.str();
  }
}

TEST_F(UnpackTest, MisuseIsExplained) {
  const ImageForm form = kForms[0];
  const Tensor images = device.empty(form.image_shape(2)), packed = device.empty(form.packed_shape(2));
  expect_error<ShapeError>("block 0", [&] { pack_images(ctx(), {}, images, packed); });
  expect_error<ShapeError>("(2, 35, 42, 3)", [&] { pack_images(ctx(), form, device.empty({2, 35, 42, 3}), packed); });
  expect_error<ShapeError>("(2, 10, 12, 64)", [&] { pack_images(ctx(), form, images, device.empty({2, 10, 12, 64})); });
  expect_error<DtypeError>("f16",
                           [&] { pack_images(ctx(), form, images, device.empty(form.packed_shape(2), DType::f16)); });
  expect_error<DtypeError>("f16", [&] {
    unpack_images(ctx(), form, device.empty(form.packed_shape(2), DType::f16), images, GradMode::overwrite);
  });
  const Tensor pixels = device.empty({2, 8, 8, 3}, DType::u8), gray = device.empty({2, 8, 8, 1}, DType::u8);
  expect_error<ShapeError>("(2, 35, 43, 3)", [&] { resize_normalize(ctx(), {}, pixels, images, form); });
  expect_error<ShapeError>("3 channels", [&] { resize_normalize(ctx(), {}, gray, packed, form); });
  EXPECT_EQ(form.str(), "10 x 12 x 48, blocks of 4 x 4 pixels");
  EXPECT_EQ(kForms[3].str(), "12 x 12 x 8, 5 channels of zeros");
  EXPECT_EQ(ImageForm{}.str(), "as it is");
}

}  // namespace
}  // namespace vitrine::test
