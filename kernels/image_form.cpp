// SPDX-License-Identifier: Apache-2.0
#include "kernels/image_form.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kPackedGrain = 16384;

/// Row `i` of the packed image. The pixels of a block that share a row lie side by side in both layouts.
template <class T>
void pack_row(const ImageForm& f, const T* image, int64_t i, T* row) {
  std::fill_n(row, f.columns * f.depth, T{});
  const int64_t run = f.block * f.channels;
  for (int64_t u = 0; u < f.block; ++u) {
    const int64_t y = f.block * i + u - f.pad;
    if (y < 0 || y >= f.height) continue;
    for (int64_t j = 0; j < f.columns; ++j) {
      const int64_t x = f.block * j - f.pad;
      const int64_t begin = std::max<int64_t>(0, x), end = std::min(f.width, x + f.block);
      if (begin >= end) continue;
      std::copy_n(image + (y * f.width + begin) * f.channels, (end - begin) * f.channels,
                  row + j * f.depth + u * run + (begin - x) * f.channels);
    }
  }
}

void pack_images(ExecContext&, const ImageForm& form, ConstView images, View packed) {
  const int64_t row = form.columns * form.depth;
  with_storage(packed.dtype, [&]<class T>(T) {
    parallel_for(packed.shape[0] * form.rows, std::max<int64_t>(1, kPackedGrain / row),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     const T* image = images.as<T>() + r / form.rows * form.height * form.width * form.channels;
                     pack_row(form, image, r % form.rows, packed.as<T>() + r * row);
                   }
                 });
  });
}

void unpack_images(ExecContext&, const ImageForm& form, ConstView packed, View images, GradMode mode) {
  const ImageForm f = form;
  const int64_t row = f.width * f.channels;
  const bool accumulate = mode == GradMode::accumulate;
  parallel_for(images.shape[0] * f.height, std::max<int64_t>(1, kPackedGrain / row), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* cells = packed.as<float>() + r / f.height * f.rows * f.columns * f.depth;
      float* pixels = images.as<float>() + r * row;
      const int64_t y = r % f.height + f.pad, i = y / f.block;
      for (int64_t x = 0; x < f.width; ++x) {
        const int64_t j = (x + f.pad) / f.block;
        const bool covered = i < f.rows && j < f.columns;
        const int64_t first = (y % f.block * f.block + (x + f.pad) % f.block) * f.channels;
        for (int64_t c = 0; c < f.channels; ++c) {
          const float value = covered ? cells[(i * f.columns + j) * f.depth + first + c] : 0.0F;
          float& pixel = pixels[x * f.channels + c];
          pixel = accumulate ? pixel + value : value;
        }
      }
    }
  });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // image_form.cu
void pack_images(ExecContext& ctx, const ImageForm& form, ConstView images, View packed);
void unpack_images(ExecContext& ctx, const ImageForm& form, ConstView packed, View images, GradMode mode);
}  // namespace cuda

namespace {

void check_form(const char* name, const ImageForm& f) {
  if (f.block >= 1 && f.height >= 1 && f.width >= 1 && f.channels >= 1 && f.pad >= 0 && f.rows >= 1 && f.columns >= 1 &&
      f.depth >= f.block * f.block * f.channels)
    return;
  throw ShapeError(
      fmt::format("{}: the form has images {} x {} x {}, block {}, pad {} and {} x {} x {} positions, expected sizes "
                  ">= 1, pad >= 0, and a depth of at "
                  "least block * block * channels",
                  name, f.height, f.width, f.channels, f.block, f.pad, f.rows, f.columns, f.depth));
}

}  // namespace

std::string ImageForm::str() const {
  if (block == 0) return "as it is";
  const std::string size = fmt::format("{} x {} x {}", rows, columns, depth);
  if (block == 1) return fmt::format("{}, {} channels of zeros", size, depth - channels);
  return fmt::format("{0}, blocks of {1} x {1} pixels", size, block);
}

void pack_images(ExecContext& ctx, const ImageForm& form, ConstView images, View packed) {
  constexpr const char* kName = "pack_images";
  check_form(kName, form);
  check::rank(kName, "images", images, 4, "(N, H, W, C)");
  check::tensor(kName, "images", images, ctx);
  check::shape(kName, "images", images, form.image_shape(images.shape[0]));
  check::tensor(kName, "packed", packed, form.packed_shape(images.shape[0]), images.dtype, ctx);
  check::no_overlap(kName, {"packed", packed}, {{"images", images}});
  if (packed.numel() == 0) return;
  run(ctx, {kName, {images}, {packed}}, cpu::pack_images, VITRINE_IF_CUDA(cuda::pack_images), form, images, packed);
}

void unpack_images(ExecContext& ctx, const ImageForm& form, ConstView packed, View images, GradMode mode) {
  constexpr const char* kName = "unpack_images";
  check_form(kName, form);
  check::rank(kName, "packed", packed, 4, "(N, rows, columns, depth)");
  check::tensor(kName, "packed", packed, form.packed_shape(packed.shape[0]), DType::f32, ctx);
  check::tensor(kName, "images", images, form.image_shape(packed.shape[0]), DType::f32, ctx);
  check::no_overlap(kName, {"images", images}, {{"packed", packed}});
  if (images.numel() == 0) return;
  run(ctx, {kName, {packed, content_of(images, mode)}, {images}}, cpu::unpack_images,
      VITRINE_IF_CUDA(cuda::unpack_images), form, packed, images, mode);
}

}  // namespace vitrine
