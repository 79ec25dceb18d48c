// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/readers.h"
#include "data/sampler.h"
#include "data/settings.h"
#include "runtime/error.h"
#include "runtime/hash.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

constexpr int64_t kDefaultDrawn = 10'000;
constexpr int64_t kMostDrawn = 10'000'000;

int64_t parse_count(const std::string& description, std::string_view text) {
  const std::optional<int64_t> count = parse_number<int64_t>(text);
  if (!count || *count < 1 || *count > kMostDrawn) {
    throw ConfigError({given(settings::kDatasetDescription, description),
                       fmt::format(": \"{}\" is not a number of images from 1 to {}; use synthetic or synthetic:10000",
                                   text, kMostDrawn)});
  }
  return *count;
}

constexpr int64_t kFingerprintSamples = 256;

class MemorySamples final : public Samples {
 public:
  MemorySamples(std::vector<uint8_t> pixels, std::vector<int32_t> labels)
      : pixels_(std::move(pixels)), labels_(std::move(labels)) {
    VITRINE_ASSERT(labels_.empty() ? pixels_.empty() : pixels_.size() % labels_.size() == 0,
                   "all images have one size");
  }
  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int32_t label(int64_t i) const override { return labels_[static_cast<size_t>(i)]; }
  void read_image(int64_t i, std::span<uint8_t> out) const override {
    std::memcpy(out.data(), pixels_.data() + static_cast<size_t>(i) * out.size(), out.size());
  }
  int64_t held_bytes() const override {
    return static_cast<int64_t>(pixels_.size() + labels_.size() * sizeof labels_[0]);
  }

 private:
  const std::vector<uint8_t> pixels_;
  const std::vector<int32_t> labels_;
};

/// Some samples of a set, in the order of `indices`.
class PickedSamples final : public Samples {
 public:
  /// holds_all  what the whole set occupies is counted here
  PickedSamples(std::shared_ptr<const Samples> all, std::vector<int64_t> indices, bool holds_all)
      : all_(std::move(all)), indices_(std::move(indices)), holds_all_(holds_all) {}
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  int32_t label(int64_t i) const override { return all_->label(indices_[static_cast<size_t>(i)]); }
  void read_image(int64_t i, std::span<uint8_t> out) const override {
    all_->read_image(indices_[static_cast<size_t>(i)], out);
  }
  void read_sequence(int64_t i, std::span<int32_t> tokens, std::span<int32_t> targets) const override {
    all_->read_sequence(indices_[static_cast<size_t>(i)], tokens, targets);
  }
  int64_t held_bytes() const override {
    return static_cast<int64_t>(indices_.size() * sizeof indices_[0]) + (holds_all_ ? all_->held_bytes() : 0);
  }

 private:
  const std::shared_ptr<const Samples> all_;
  const std::vector<int64_t> indices_;
  const bool holds_all_;
};

/// Makes a share of the training images the test set.
void hold_out(DatasetPair& pair, double share, uint64_t seed) {
  const int64_t all = pair.train.size();
  const bool is_share = share > 0.0 && share < 1.0;
  const int64_t held_out = is_share ? std::llround(static_cast<double>(all) * share) : 0;
  if (held_out < 1 || held_out >= all) {
    throw ConfigError({given(settings::kDatasetValSplit, fmt::format("{}", share)),
                       fmt::format(": of {} images of {} it holds out {}; expected at least one, and one to train on",
                                   all, pair.train.name, held_out)});
  }
  const EpochOrder order({.seed = seed}, all, 0);
  std::vector<int64_t> train, test;
  for (int64_t place = 0; place < all; ++place) (place < held_out ? test : train).push_back(order[place]);
  std::ranges::sort(train);
  std::ranges::sort(test);
  pair.test = pair.train;
  pair.test.name += ", held out";
  pair.test.samples = std::make_shared<PickedSamples>(pair.train.samples, std::move(test), false);
  pair.train.samples = std::make_shared<PickedSamples>(pair.train.samples, std::move(train), true);
}

class SkippingSamples final : public Samples {
 public:
  SkippingSamples(const Dataset& set, std::shared_ptr<UnreadSamples> unread, SkippedErrors errors)
      : all_(set.samples), unread_(std::move(unread)), errors_(errors) {
    for (int64_t c = 0; c < set.channels; ++c)
      mean_.push_back(static_cast<uint8_t>(std::lround(255 * set.mean[static_cast<size_t>(c)])));
  }
  int64_t size() const override { return all_->size(); }
  int32_t label(int64_t i) const override { return unread_->contains(i) ? kIgnoredLabel : all_->label(i); }
  void read_image(int64_t i, std::span<uint8_t> out) const override {
    if (reads(i, [&] { all_->read_image(i, out); })) return;
    for (size_t p = 0; p < out.size(); ++p) out[p] = mean_[p % mean_.size()];
  }
  void read_sequence(int64_t i, std::span<int32_t> tokens, std::span<int32_t> targets) const override {
    if (reads(i, [&] { all_->read_sequence(i, tokens, targets); })) return;
    std::ranges::fill(tokens, 0);
    std::ranges::fill(targets, kIgnoredLabel);
  }
  void read_ahead(const std::function<bool()>& stop) const override { all_->read_ahead(stop); }
  int64_t held_bytes() const override { return all_->held_bytes(); }

 private:
  /// Calls `read`; false: it failed, and sample i is skipped.
  template <class Read>
  bool reads(int64_t i, const Read& read) const {
    try {
      read();
      return true;
    } catch (const DataError& error) {
      if (errors_ == SkippedErrors::damaged && dynamic_cast<const DamagedSample*>(&error) == nullptr) throw;
      unread_->add(i, std::current_exception());
      return false;
    }
  }

  const std::shared_ptr<const Samples> all_;
  const std::shared_ptr<UnreadSamples> unread_;
  const SkippedErrors errors_;
  std::vector<uint8_t> mean_;
};

/// Calls visit(sample) for at most `most` samples, evenly spaced.
template <typename Visit>
void visit_evenly(const Dataset& set, int64_t most, Visit visit) {
  const int64_t count = std::min(most, set.size());
  const double step = static_cast<double>(set.size()) / static_cast<double>(std::max<int64_t>(count, 1));
  for (int64_t k = 0; k < count; ++k)
    visit(std::min(set.size() - 1, static_cast<int64_t>(static_cast<double>(k) * step)));
}

DatasetPair open_kind(const std::string& description, uint64_t seed, const DatasetOptions& options) {
  const size_t colon = description.find(':');
  const std::string kind = description.substr(0, colon);
  const bool has_argument = colon != std::string::npos;
  const std::string argument = has_argument ? description.substr(colon + 1) : "";
  if (options.sequence_length > 0) {
    if (kind == "synthetic")
      return draw_tokens(has_argument ? parse_count(description, argument) : kDefaultDrawn, seed, options);
    if (!argument.empty() && (kind == "tokens" || kind == "text" || kind == "characters"))
      return open_tokens(description, options);
    throw ConfigError({given(settings::kDatasetDescription, description),
                       ": the model takes tokens; expected tokens:GLOB, text:FILE, characters:FILE or "
                       "synthetic[:COUNT]"});
  }
  if (kind == "synthetic")
    return draw_synthetic(has_argument ? parse_count(description, argument) : kDefaultDrawn, seed, options.measured);
  constexpr std::array kKinds{"cifar10", "cifar100", "fashion-mnist", "idx", "image-folder"};
  if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end()) {
    throw ConfigError({given(settings::kDatasetDescription, description),
                       fmt::format(": expected {}:DIR or synthetic[:COUNT]", fmt::join(kKinds, ":DIR, "))});
  }
  if (argument.empty()) {
    const bool downloads = kind != "idx" && kind != "image-folder";
    throw ConfigError({given(settings::kDatasetDescription, description),
                       fmt::format(": expected {}:DIR, where DIR is the folder of the data set{}", kind,
                                   downloads ? fmt::format("; tools/get_data {} DIR downloads it", kind) : "")});
  }
  if (kind == "cifar10") return open_cifar(argument, CifarKind::cifar10, options);
  if (kind == "cifar100") return open_cifar(argument, CifarKind::cifar100, options);
  if (kind == "image-folder") return open_image_folder(argument, options);
  return open_idx(argument, kind == "idx" ? IdxKind::any : IdxKind::fashion_mnist, options);
}

}  // namespace

void Samples::read_sequence(int64_t, std::span<int32_t>, std::span<int32_t>) const {
  VITRINE_ASSERT(false, "a set of images has no tokens");
}

std::shared_ptr<const Samples> samples_in_memory(std::vector<uint8_t> pixels, std::vector<int32_t> labels) {
  return std::make_shared<MemorySamples>(std::move(pixels), std::move(labels));
}

Dataset first_samples(const Dataset& set, int64_t count) {
  VITRINE_ASSERT(count >= 1, "a data set has at least one sample");
  if (count >= set.size()) return set;
  Dataset first = set;
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  first.samples = std::make_shared<PickedSamples>(set.samples, std::move(indices), true);
  return first;
}

std::vector<std::exception_ptr> UnreadSamples::errors() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::exception_ptr> errors;
  for (const auto& [sample, error] : errors_) errors.push_back(error);
  return errors;
}

bool UnreadSamples::contains(int64_t sample) const {
  const std::lock_guard lock(mutex_);
  return errors_.contains(sample);
}

void UnreadSamples::add(int64_t sample, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  errors_.emplace(sample, std::move(error));
}

Dataset skip_unread(const Dataset& set, std::shared_ptr<UnreadSamples> unread, SkippedErrors errors) {
  Dataset skipping = set;
  skipping.samples = std::make_shared<SkippingSamples>(set, std::move(unread), errors);
  return skipping;
}

int32_t Dataset::label(int64_t i) const {
  VITRINE_ASSERT(i >= 0 && i < size(), "label out of range");
  return samples->label(i);
}

void Dataset::read_image(int64_t i, std::span<uint8_t> out) const {
  VITRINE_ASSERT(i >= 0 && i < size(), "image out of range");
  VITRINE_ASSERT(static_cast<int64_t>(out.size()) == bytes_per_image(), "an image needs room for its bytes");
  samples->read_image(i, out);
}

std::vector<uint8_t> Dataset::image(int64_t i) const {
  std::vector<uint8_t> pixels(static_cast<size_t>(bytes_per_image()));
  read_image(i, pixels);
  return pixels;
}

uint64_t fingerprint(const Dataset& set) {
  const int64_t size = set.size();
  uint64_t hash = hash_bytes(0, &size, sizeof size);
  std::vector<uint8_t> image(static_cast<size_t>(set.bytes_per_image()));
  visit_evenly(set, kFingerprintSamples, [&](int64_t sample) {
    set.read_image(sample, image);
    const int32_t label = set.label(sample);  // afterwards: see skip_unread()
    hash = hash_bytes(hash, image.data(), set.bytes_per_image());
    hash = hash_bytes(hash, &label, sizeof label);
  });
  return hash;
}

std::vector<int64_t> class_counts(const Dataset& set) {
  std::vector<int64_t> counts(static_cast<size_t>(set.classes));
  for (int64_t i = 0; i < set.size(); ++i) ++counts[static_cast<size_t>(set.label(i))];
  return counts;
}

DatasetPair open_dataset(const std::string& description, uint64_t seed, const DatasetOptions& options) {
  DatasetPair pair = open_kind(description, seed, options);
  if (options.val_split != 0.0) hold_out(pair, options.val_split, seed);
  for (Dataset* set : {&pair.train, &pair.test}) {
    if (!set->class_names.empty()) continue;
    for (int64_t i = 0; i < set->classes; ++i) set->class_names.push_back(std::to_string(i));
  }
  return pair;
}

void measure_statistics(DatasetPair& pair, int64_t most_images) {
  const Dataset& train = pair.train;
  const size_t channels = static_cast<size_t>(train.channels);
  VITRINE_ASSERT(channels >= 1 && channels <= train.mean.size(), "images have one to four channels");
  std::vector<std::array<int64_t, 256>> histograms(channels);
  std::vector<uint8_t> image(static_cast<size_t>(train.bytes_per_image()));
  visit_evenly(train, most_images, [&](int64_t sample) {
    train.read_image(sample, image);
    for (size_t i = 0; i < image.size();) {
      for (auto& histogram : histograms) ++histogram[image[i++]];
    }
  });
  std::array<float, 4> mean{}, deviation{};
  for (size_t c = 0; c < channels; ++c) {
    const auto& histogram = histograms[c];
    double count = 0, sum = 0, squares = 0;
    for (size_t value = 0; value < histogram.size(); ++value) {
      const double weight = static_cast<double>(histogram[value]), x = static_cast<double>(value) / 255;
      count += weight;
      sum += weight * x;
      squares += weight * x * x;
    }
    const double variance = squares / count - sum / count * (sum / count);
    if (!(variance > 1e-9)) {
      throw DataError(
          {fmt::format(
               "{}: channel {} has the same value in all pixels, so it cannot be normalized by its own mean and "
               "deviation; check the images, or set the normalization with ",
               train.name, c),
           settings::kDatasetMeasured});
    }
    mean[c] = static_cast<float>(sum / count);
    deviation[c] = static_cast<float>(std::sqrt(variance));
  }
  pair.train.mean = pair.test.mean = mean;
  pair.train.std = pair.test.std = deviation;
}

std::optional<std::filesystem::path> find_below(const std::filesystem::path& folder,
                                                const std::vector<std::string>& endings) {
  constexpr int kDepth = 2, kMostEntries = 10'000;
  namespace fs = std::filesystem;
  std::optional<fs::path> first;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error);
  for (int i = 0; !error && entry != fs::recursive_directory_iterator() && i < kMostEntries; ++i) {
    if (entry.depth() == kDepth) entry.disable_recursion_pending();
    const fs::path& path = entry->path();
    const bool named =
        std::ranges::any_of(endings, [&](const std::string& ending) { return path.native().ends_with(ending); });
    if (std::error_code ignored; named && entry->is_regular_file(ignored) && (!first || path < *first)) first = path;
    entry.increment(error);
  }
  return first;
}

void expect_folder(const char* kind, const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  const bool tilde = folder.string().starts_with('~');
  throw DataError(fmt::format("{}: {} is not a folder{}", kind, folder.string(),
                              tilde ? "; the shell expands ~ only at the start of a word, write $HOME" : ""));
}

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;
}

}  // namespace vitrine
