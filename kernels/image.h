// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>

#include <vitrine/kernels/image_form.h>
#include <vitrine/kernels/step_values.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Statistics of each channel of a data set, for pixels scaled to 0..1.
struct Normalization {
  std::array<float, 4> mean{};
  std::array<float, 4> std{1.0F, 1.0F, 1.0F, 1.0F};
};

/// Bilinear resize, then y = (pixel / 255 - mean) / std.
///   images (N, h, w, C) u8, C <= 4      y (N, H, W, C) f32, f16 or bf16 (the f32 result rounded), any H, W
///   form   of y, if not empty: y is what pack_images() makes of (N, H, W, C), with the same bits
/// ensures   samples like torch.nn.functional.interpolate(mode="bilinear", align_corners=False, antialias=False); the
///           same bits as resize_normalize_on_host on every backend
/// throws    ShapeError, DtypeError, DeviceError
void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y,
                      const ImageForm& form = {});

/// Random changes of training images, as torchvision's transforms make them. None by default.
struct Augmentation {
  bool flip = false;  // RandomHorizontalFlip(0.5)
  int64_t crop_padding =
      0;  // above 0: RandomCrop((h, w), padding) of the stored image, with zero pixels around it; at most min(h, w)
  int64_t cutout =
      0;  // above 0: side of a square that is set to 0 after normalization, clipped at the borders; at most min(H, W)

  bool any() const { return flip || crop_padding > 0 || cutout > 0; }
};

/// Selects the random numbers of an augmentation. They belong to the sample and the epoch, never to a device or a place
/// in a batch.
struct AugmentationKey {
  uint64_t seed = 0;
  int64_t epoch = 0;  // 0 <= epoch < 2^40
};

/// What is drawn for one image.
struct AugmentationDraw {
  bool flip = false;          // probability 1/2
  int64_t top = 0, left = 0;  // the crop's corner in the stored image, each uniform in -crop_padding..crop_padding
  int64_t cut_top = 0,
          cut_left = 0;  // the square's corner in y: center - cutout / 2, the center uniform over the pixels
};
/// Draws from Philox4x32-10 with key = seed and the stream `epoch` of RandomPurpose::augmentation, blocks 2 * sample
/// and 2 * sample + 1. A word w gives floor(w * bound / 2^32) for a bound.
///   sample         index in the data set, 0 <= sample < 2^31
///   height, width  of y
AugmentationDraw draw_augmentation(const Augmentation& augmentation, const AugmentationKey& key, int64_t sample,
                                   int64_t height, int64_t width);

/// resize_normalize() of changed images: the crop, then the flip, of the stored pixels; the resize and normalization;
/// the cutout.
///   images (N, h, w, C) u8, C <= 4      samples (N) i32: index of each image in its data set
///   y (N, H, W, C) f32, f16 or bf16
///   form   of y, as in resize_normalize()
///   values  empty, or (StepValues::kCount) i32: epoch_stream
/// ensures   draws as draw_augmentation(); the same bits on every backend
/// source    torchvision.transforms; DeVries and Taylor 2017 (cutout)
/// throws    ShapeError, DtypeError, DeviceError; ConfigError when the augmentation or the epoch is out of its range
void augment_normalize(ExecContext& ctx, const Augmentation& augmentation, const AugmentationKey& key,
                       const Normalization& normalization, ConstView images, ConstView samples, View y,
                       const ImageForm& form = {}, ConstView values = {});

/// resize_normalize() of one image in host memory, on the calling thread.
///   source (h, w, C), C <= 4      target (H, W, C)
/// throws    ShapeError when the length of a span does not match its shape
void resize_normalize_on_host(const Normalization& normalization, const Shape& source, std::span<const uint8_t> pixels,
                              const Shape& target, std::span<float> y);

}  // namespace vitrine
