// SPDX-License-Identifier: Apache-2.0
#include "data/image_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "data/dataset.h"
#include "runtime/error.h"
#include "runtime/file_kind.h"

namespace vitrine {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 28;

std::vector<uint8_t> read_file(const std::string& path) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"), close);
  if (!file) {
    const int code = errno;
    const std::string why = fmt::format("{}: cannot open it: {}", path, std::strerror(code));
    if (code == ENOENT) throw DamagedSample(why);  // a link to nothing; other errors are the machine's
    throw DataError(why);
  }
  std::vector<uint8_t> bytes;
  constexpr size_t kPiece = size_t{1} << 16;
  for (size_t got = kPiece; got == kPiece;) {
    const size_t before = bytes.size();
    if (before > kMostFileBytes)
      throw DataError(fmt::format("{}: expected an image file of at most {} bytes, found more", path, kMostFileBytes));
    bytes.resize(before + kPiece);
    got = std::fread(bytes.data() + before, 1, kPiece, file.get());
    bytes.resize(before + got);
  }
  if (std::ferror(file.get()) != 0) throw DataError(fmt::format("{}: cannot read it: {}", path, std::strerror(errno)));
  return bytes;
}

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
  const double support = std::max(scale, 1.0);
  std::vector<Taps> all;
  for (int64_t i = begin; i < begin + count; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    Taps taps;
    taps.first = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t end = std::min(source, static_cast<int64_t>(center + support + 0.5));
    std::vector<double> weights;
    double sum = 0.0;
    for (int64_t x = taps.first; x < end; ++x) {
      weights.push_back(std::max(0.0, 1.0 - std::abs((static_cast<double>(x) - center + 0.5) / support)));
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

}  // namespace

void check_image_size(int64_t width, int64_t height, const std::string& path) {
  if (width >= 1 && height >= 1 && width <= kMostImagePixels / height) return;
  throw DataError(
      fmt::format("{}: expected an image of 1 to {} pixels, found {} x {}", path, kMostImagePixels, width, height));
}

RgbImage read_image_file(const std::filesystem::path& path) {
  const std::vector<uint8_t> bytes = read_file(path.string());
  const FileKind kind = recognize(bytes);
  try {
    if (kind.format == FileKind::Format::jpeg) return decode_jpeg(bytes, path.string());
    if (kind.format == FileKind::Format::png) return decode_png(bytes, path.string());
    throw DataError(fmt::format(
        "{}: expected a JPEG or PNG file, found {}", path.string(),
        kind ? kind.describe(kind.format == FileKind::Format::picture ? "convert it to JPEG or PNG, or remove it"
                                                                      : "remove it")
             : "one that begins differently; remove or convert it"));
  } catch (const DataError& error) {
    throw DamagedSample(error.reason());
  }
}

void resize_and_crop(const RgbImage& image, int64_t side, std::span<uint8_t> target) {
  constexpr int64_t kChannels = 3;
  VITRINE_ASSERT(static_cast<int64_t>(target.size()) == side * side * kChannels, "the target has room for one image");
  const bool wide = image.width > image.height;
  const int64_t width = wide ? side * image.width / image.height : side,
                height = wide ? side : side * image.height / image.width;
  // Half of an odd difference is rounded to even, as Python does.
  const auto middle = [&](int64_t length) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(length - side) / 2.0));
  };
  const std::vector<Taps> columns = triangle_taps(image.width, width, middle(width), side);
  const std::vector<Taps> rows = triangle_taps(image.height, height, middle(height), side);
  const int64_t first = rows.front().first, end = rows.back().first + static_cast<int64_t>(rows.back().weights.size());
  std::vector<uint8_t> narrowed(static_cast<size_t>((end - first) * side * kChannels));
  for (int64_t y = first; y < end; ++y) {
    for (int64_t x = 0; x < side; ++x) {
      const Taps& taps = columns[static_cast<size_t>(x)];
      const uint8_t* source = image.pixels.data() + (y * image.width + taps.first) * kChannels;
      for (int64_t c = 0; c < kChannels; ++c) {
        narrowed[static_cast<size_t>(((y - first) * side + x) * kChannels + c)] = apply(taps, source + c, kChannels);
      }
    }
  }
  for (int64_t y = 0; y < side; ++y) {
    const Taps& taps = rows[static_cast<size_t>(y)];
    const uint8_t* source = narrowed.data() + (taps.first - first) * side * kChannels;
    for (int64_t i = 0; i < side * kChannels; ++i)
      target[static_cast<size_t>(y * side * kChannels + i)] = apply(taps, source + i, side * kChannels);
  }
}

}  // namespace vitrine
