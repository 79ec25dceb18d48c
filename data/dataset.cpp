// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "data/readers.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr int64_t kDefaultDrawn = 10'000;
constexpr int64_t kMostDrawn = 10'000'000;

int64_t parse_count(const std::string& description, std::string_view text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > kMostDrawn) {
    throw ConfigError(
        fmt::format("data \"{}\": \"{}\" is not a number of images from 1 to {}; write synthetic or synthetic:10000", description, text, kMostDrawn));
  }
  return count;
}

}  // namespace

std::span<const uint8_t> Dataset::image(int64_t i) const {
  VITRINE_ASSERT(i >= 0 && i < size(), "image out of range");
  return std::span<const uint8_t>(pixels).subspan(static_cast<size_t>(i * bytes_per_image()), static_cast<size_t>(bytes_per_image()));
}

DatasetPair open_dataset(const std::string& description, uint64_t seed) {
  const size_t colon = description.find(':');
  const std::string kind = description.substr(0, colon);
  const bool has_argument = colon != std::string::npos;
  const std::string argument = has_argument ? description.substr(colon + 1) : "";
  if (kind == "synthetic") return draw_synthetic(has_argument ? parse_count(description, argument) : kDefaultDrawn, seed);
  if (kind != "cifar10" && kind != "fashion-mnist" && kind != "idx") {
    throw ConfigError(
        fmt::format("data \"{}\": unknown kind \"{}\"; there are cifar10:DIR, fashion-mnist:DIR, idx:DIR and synthetic[:COUNT]", description, kind));
  }
  if (argument.empty()) throw ConfigError(fmt::format("data \"{}\": no folder; write {}:DIR", description, kind));
  if (kind == "cifar10") return open_cifar10(argument);
  return open_idx(argument, kind == "idx" ? IdxKind::any : IdxKind::fashion_mnist);
}

void measure_statistics(DatasetPair& pair) {
  const Dataset& train = pair.train;
  const size_t channels = static_cast<size_t>(train.channels);
  VITRINE_ASSERT(channels >= 1 && channels <= train.mean.size(), "images have one to four channels");
  std::array<float, 4> mean{}, deviation{};
  for (size_t c = 0; c < channels; ++c) {
    std::array<int64_t, 256> histogram{};
    for (size_t i = c; i < train.pixels.size(); i += channels) ++histogram[train.pixels[i]];
    double count = 0, sum = 0, squares = 0;
    for (size_t value = 0; value < histogram.size(); ++value) {
      const double weight = static_cast<double>(histogram[value]), x = static_cast<double>(value) / 255;
      count += weight;
      sum += weight * x;
      squares += weight * x * x;
    }
    const double variance = squares / count - sum / count * (sum / count);
    if (!(variance > 1e-9)) {
      throw DataError(fmt::format("{}: channel {} has the same value in all pixels, so it cannot be normalised; check the images", train.name, c));
    }
    mean[c] = static_cast<float>(sum / count);
    deviation[c] = static_cast<float>(std::sqrt(variance));
  }
  pair.train.mean = pair.test.mean = mean;
  pair.train.std = pair.test.std = deviation;
}

void expect_folder(const char* kind, const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    throw DataError(fmt::format("{}: {} is not a folder{}", kind, folder.string(),
                                folder.string().front() == '~' ? "; the shell expands ~ only at the start of a word, write $HOME" : ""));
  }
}

}  // namespace vitrine
