// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace vitrine {

/// A decoded image. Private to the readers.
struct RgbImage {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> pixels;  // (height, width, 3)
};

/// Larger images are refused, so that one file cannot take all memory.
inline constexpr int64_t kMostImagePixels = int64_t{1} << 27;

/// Reads and decodes a JPEG or PNG file, recognized by its first bytes, as Pillow's Image.open(path).convert("RGB")
/// does: grey values become three equal channels, transparency is dropped, 16 bits become the upper 8 (grey of 16
/// bits is cut off at 255), CMYK is converted without a profile, the Exif orientation is ignored. throws
/// DamagedSample with the path: another format, a damaged or incomplete file, too many pixels; DataError if it cannot
/// be read; UnsupportedError for a format that was not built in.
RgbImage read_image_file(const std::filesystem::path& path);

// Decoders of one format each, from a whole file in memory. `path` is for messages.
RgbImage decode_jpeg(std::span<const uint8_t> file, const std::string& path);  // jpeg.cpp, no_jpeg.cpp
RgbImage decode_png(std::span<const uint8_t> file, const std::string& path);   // png.cpp, no_png.cpp

/// throws DataError for an image without pixels or with more than kMostImagePixels.
void check_image_size(int64_t width, int64_t height, const std::string& path);

/// Resizes the shorter side to `side` with the antialiased bilinear filter of Pillow 13, to the bit, and crops the
/// center, as torchvision's Resize(side) and CenterCrop(side) do.   target (side, side, 3)
void resize_and_crop(const RgbImage& image, int64_t side, std::span<uint8_t> target);

}  // namespace vitrine
