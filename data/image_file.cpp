// SPDX-License-Identifier: Apache-2.0
#include "data/image_file.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "data/dataset.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/file_type.h"

namespace vitrine {
namespace {

constexpr int64_t kRgb = 3;
// Pillow's fixed-point weights of 8-bit images.
constexpr int kWeightBits = 22;

/// Where one output coordinate samples: source[first], source[first + 1], ... with weights whose sum is 1.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights;
};

/// Pillow's triangle filter for the outputs [begin, begin + count) of a line that is resized from `source` to `target`.
std::vector<Taps> triangle_taps(int64_t source, int64_t target, int64_t begin, int64_t count) {
  const double scale = static_cast<double>(source) / static_cast<double>(target);
  const double support = std::max(scale, 1.0), inverse = 1.0 / support;
  std::vector<Taps> all;
  for (int64_t i = begin; i < begin + count; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    Taps taps;
    taps.first = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t end = std::min(source, static_cast<int64_t>(center + support + 0.5));
    std::vector<double> weights;
    double sum = 0.0;
    for (int64_t x = taps.first; x < end; ++x) {
      weights.push_back(std::max(0.0, 1.0 - std::abs((static_cast<double>(x) - center + 0.5) * inverse)));
      sum += weights.back();
    }
    for (const double weight : weights)
      taps.weights.push_back(static_cast<int32_t>(0.5 + weight / sum * (1 << kWeightBits)));
    all.push_back(std::move(taps));
  }
  return all;
}

/// The weighted sum of pixels that lie `stride` bytes apart.
uint8_t apply(const Taps& taps, const uint8_t* first, int64_t stride) {
  int64_t sum = int64_t{1} << (kWeightBits - 1);
  for (size_t i = 0; i < taps.weights.size(); ++i)
    sum += int64_t{taps.weights[i]} * first[static_cast<int64_t>(i) * stride];
  return static_cast<uint8_t>(std::clamp<int64_t>(sum >> kWeightBits, 0, 255));
}

/// Resizes `rows` rows of `row_bytes` bytes each. Rows of the result have a pixel for each of the taps.
std::vector<uint8_t> resize_rows(const uint8_t* pixels, int64_t rows, int64_t row_bytes,
                                 const std::vector<Taps>& taps) {
  std::vector<uint8_t> resized(static_cast<size_t>(rows) * taps.size() * kRgb);
  uint8_t* to = resized.data();
  for (int64_t y = 0; y < rows; ++y) {
    for (const Taps& t : taps) {
      for (int64_t c = 0; c < kRgb; ++c) *to++ = apply(t, pixels + y * row_bytes + t.first * kRgb + c, kRgb);
    }
  }
  return resized;
}

/// Resizes the columns of rows of `row_bytes` bytes each, the first of which is row `first` for the taps.
std::vector<uint8_t> resize_columns(const uint8_t* pixels, int64_t first, int64_t row_bytes,
                                    const std::vector<Taps>& taps) {
  std::vector<uint8_t> resized(taps.size() * static_cast<size_t>(row_bytes));
  uint8_t* to = resized.data();
  for (const Taps& t : taps) {
    for (int64_t i = 0; i < row_bytes; ++i) *to++ = apply(t, pixels + (t.first - first) * row_bytes + i, row_bytes);
  }
  return resized;
}

}  // namespace

void check_image_size(int64_t width, int64_t height, const std::string& path) {
  if (width >= 1 && height >= 1 && width <= kMostImagePixels / height) return;
  throw DataError(
      fmt::format("{}: expected an image of 1 to {} pixels, found {} x {}", path, kMostImagePixels, width, height));
}

RgbImage read_image_file(const std::filesystem::path& path) {
  constexpr int64_t kMostFileBytes = int64_t{1} << 28;
  std::error_code ignored;
  // A link to nothing is damaged. What else is missing was there when the folder was listed: not a file is at fault.
  if (std::filesystem::is_symlink(path, ignored) && !std::filesystem::exists(path, ignored))
    throw DamagedSample(fmt::format("{}: it cannot be opened (No such file or directory)", path.string()));
  const std::string file = read_regular_file(path.string(), kMostFileBytes);
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(file.data()), file.size());
  const FileType kind = recognize(file);
  try {
    if (kind.format == FileType::Format::jpeg) return decode_jpeg(bytes, path.string());
    if (kind.format == FileType::Format::png) return decode_png(bytes, path.string());
    throw DataError(fmt::format(
        "{}: expected a JPEG or PNG file, found {}", path.string(),
        kind ? kind.describe(kind.format == FileType::Format::picture ? "convert it to JPEG or PNG, or remove it"
                                                                      : "remove it")
             : "one that begins differently; remove or convert it"));
  } catch (const DataError& error) {
    throw DamagedSample(error.reason());
  }
}

void resize_and_crop(const RgbImage& image, int64_t side, std::span<uint8_t> target) {
  VITRINE_ASSERT(static_cast<int64_t>(target.size()) == side * side * kRgb, "the target has room for one image");
  const bool wide = image.width > image.height;
  const int64_t width = wide ? side * image.width / image.height : side,
                height = wide ? side : side * image.height / image.width;
  // Half of an odd difference is rounded to even, as Python does.
  const auto middle = [&](int64_t length) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(length - side) / 2.0));
  };
  const std::vector<Taps> columns = triangle_taps(image.width, width, middle(width), side);
  const std::vector<Taps> rows = triangle_taps(image.height, height, middle(height), side);
  const int64_t source_row = image.width * kRgb;
  std::vector<uint8_t> resized;
  // The first pass rounds to whole values, so the order of the passes counts: Pillow 13 begins with the columns of
  // images that lose more than twice as many rows as columns. They are high, and lose no columns to the crop.
  if (image.height > height && image.height - height > 2 * (image.width - width)) {
    resized = resize_rows(resize_columns(image.pixels.data(), 0, source_row, rows).data(), side, source_row, columns);
  } else {
    const int64_t first = rows.front().first,
                  end = rows.back().first + static_cast<int64_t>(rows.back().weights.size());
    resized =
        resize_columns(resize_rows(image.pixels.data() + first * source_row, end - first, source_row, columns).data(),
                       first, side * kRgb, rows);
  }
  std::ranges::copy(resized, target.begin());
}

}  // namespace vitrine
