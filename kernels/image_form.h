// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// How images (N, height, width, channels) are arranged for a convolution that is slow with few channels: `block` x
/// `block` pixels become one position of (N, rows, columns, depth), with the pixels' channels side by side (space to
/// depth).
///   packed(n, i, j, (u * block + v) * channels + c) = image(n, block * i + u - pad, block * j + v - pad, c), for u, v
///     < block and c < channels;
///   0 outside the image and in the channels from block * block * channels on
struct ImageForm {
  int64_t height = 0, width = 0, channels = 0;
  int64_t block = 0;              // 0: images as they are; 1: channels of zeros are added
  int64_t pad = 0;                // rows of zeros above the image, and columns to the left of it
  int64_t rows = 0, columns = 0;  // positions
  int64_t depth = 0;              // at least block * block * channels

  explicit operator bool() const { return block > 0; }
  friend bool operator==(const ImageForm&, const ImageForm&) = default;
  /// Shapes of `samples` images as they are, and arranged.
  Shape image_shape(int64_t samples) const { return {samples, height, width, channels}; }
  Shape packed_shape(int64_t samples) const { return {samples, rows, columns, depth}; }
  /// "58 x 58 x 48, blocks of 4 x 4 pixels"; "224 x 224 x 8, 5 channels of zeros"; "as it is".
  std::string str() const;
};

/// Arranges images.
///   images  form.image_shape(N)      packed  form.packed_shape(N)
/// dtypes    f32, f16 or bf16, both equal      aliasing  packed must not overlap images      determinism  yes
/// stream    asynchronous on ctx.stream, never synchronizes
/// throws    ShapeError, DtypeError, DeviceError
void pack_images(ExecContext& ctx, const ImageForm& form, ConstView images, View packed);

/// Takes the images out of `packed`, which is the gradient of pack_images() as well; what is no pixel is dropped.
/// Pixels outside of all blocks are 0.
///   packed  form.packed_shape(N) f32      images  form.image_shape(N) f32, overwritten or added to
/// Otherwise like pack_images.
void unpack_images(ExecContext& ctx, const ImageForm& form, ConstView packed, View images, GradMode mode);

}  // namespace vitrine
