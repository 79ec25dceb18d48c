// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/input_file.h"
#include "data/readers.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kImagesMagic = 0x00000803, kLabelsMagic = 0x00000801;
constexpr int64_t kLargestSide = 4096;
constexpr int64_t kMeasuredImages = 65'536;

const char* kind_name(IdxKind kind) { return kind == IdxKind::fashion_mnist ? "fashion-mnist" : "idx"; }

struct OpenedFile {
  fs::path path;
  InputFile file;
};

/// "train-images" and "idx3-ubyte": the file's names, also with a dot between them, plain or packed.
std::vector<std::string> names_of(const std::string& stem, const std::string& format) {
  return {stem + "-" + format, stem + "." + format, stem + "-" + format + ".gz", stem + "." + format + ".gz"};
}

bool has_test_files(const fs::path& folder) {
  std::vector<std::string> names = names_of("t10k-images", "idx3-ubyte");
  std::ranges::copy(names_of("t10k-labels", "idx1-ubyte"), std::back_inserter(names));
  return std::ranges::any_of(names, [&](const std::string& name) { return is_there(folder / name); });
}

OpenedFile open_file(const fs::path& folder, const std::string& stem, const std::string& format, IdxKind kind) {
  using Packing = InputFile::Packing;
  const std::vector<std::string> names = names_of(stem, format);
  for (const std::string& name : names) {
    const fs::path path = folder / name;
    if (is_there(path)) return {path, {path, name.ends_with(".gz") ? Packing::gzip : Packing::none}};
  }
  std::string hint = kind == IdxKind::fashion_mnist
                         ? "; they are in data/fashion of https://github.com/zalandoresearch/fashion-mnist"
                         : "";
  if (const auto found = find_below(folder, names)) {
    const bool renamed = std::ranges::find(names, found->filename().string()) == names.end();
    hint = fmt::format("; found {}: {}", found->string(),
                       renamed ? fmt::format("rename it to {}", names.front())
                               : fmt::format("use {}:{}", kind_name(kind), found->parent_path().string()));
  }
  throw DataError(fmt::format(
      "{}: {} has no {}. Expected are {{train,t10k}}-images-idx3-ubyte and {{train,t10k}}-labels-idx1-ubyte, plain or "
      ".gz{}",
      kind_name(kind), folder.string(), fmt::join(names, ", "), hint));
}

void expect_magic(InputFile& file, uint32_t magic, const char* what) {
  const uint32_t found = file.read_big_endian("magic number");
  if (found == magic) return;
  file.expect_unknown_kind("an IDX file");
  file.fail(0, fmt::format("magic number 0x{:08x} ({})", magic, what), fmt::format("0x{:08x}", found));
}

int64_t read_size(InputFile& file, const char* what, int64_t largest) {
  const int64_t offset = file.offset();
  const int64_t size = file.read_big_endian(what);
  if (size < 1 || size > largest)
    file.fail(offset, fmt::format("{} from 1 to {}", what, largest), fmt::format("{}", size));
  return size;
}

/// Reads the header of the images and returns their number.
int64_t read_image_header(InputFile& file, IdxKind kind, Dataset& set) {
  expect_magic(file, kImagesMagic, "images");
  const int64_t count = read_size(file, "number of images", UINT32_MAX);
  set.height = read_size(file, "rows", kLargestSide);
  set.width = read_size(file, "columns", kLargestSide);
  set.channels = 1;
  if (kind == IdxKind::fashion_mnist && (set.height != 28 || set.width != 28)) {
    file.fail(8, "images of 28 x 28", fmt::format("{} x {}; open other sets as idx:DIR", set.height, set.width));
  }
  return count;
}

void expect_label_count(InputFile& file, int64_t image_count) {
  expect_magic(file, kLabelsMagic, "labels");
  const int64_t count = read_size(file, "number of labels", UINT32_MAX);
  if (count != image_count)
    file.fail(4, fmt::format("{} labels, one for each image", image_count), fmt::format("{}", count));
}

// `classes` is 0 if the labels determine the number.
std::vector<uint8_t> read_labels(InputFile& file, int64_t count, int64_t classes, Dataset& set) {
  const int64_t offset = file.offset();
  std::vector<uint8_t> labels = file.read_all(count, "labels");
  set.classes = classes > 0 ? classes : int64_t{*std::max_element(labels.begin(), labels.end())} + 1;
  const auto bad = std::find_if(labels.begin(), labels.end(), [&](uint8_t label) { return label >= set.classes; });
  if (bad != labels.end())
    file.fail(offset + (bad - labels.begin()), fmt::format("a label from 0 to {}", set.classes - 1),
              fmt::format("{}", *bad));
  return labels;
}

Dataset read_part(const fs::path& folder, IdxKind kind, const std::string& part, const char* part_name,
                  int64_t classes) {
  Dataset set;
  set.name = fmt::format("{} {}", kind_name(kind), part_name);
  // Checks that both files exist before the long read.
  OpenedFile images = open_file(folder, part + "-images", "idx3-ubyte", kind);
  OpenedFile labels = open_file(folder, part + "-labels", "idx1-ubyte", kind);
  const int64_t count = read_image_header(images.file, kind, set);
  const int64_t begin = images.file.offset(), bytes = count * set.bytes_per_image();
  if (images.file.packing() == InputFile::Packing::none) {
    images.file.expect_just(bytes, "pixels");
    expect_label_count(labels.file, count);
    set.samples = samples_in_files({{images.path, count, begin, set.bytes_per_image()}},
                                   read_labels(labels.file, count, classes, set), set.bytes_per_image());
  } else {
    expect_label_count(labels.file, count);  // before the long read
    std::vector<uint8_t> pixels = images.file.read_all(bytes, "pixels");
    const std::vector<uint8_t> small_labels = read_labels(labels.file, count, classes, set);
    set.samples = samples_in_memory(std::move(pixels), {small_labels.begin(), small_labels.end()});
  }
  return set;
}

}  // namespace

DatasetPair open_idx(const fs::path& folder, IdxKind kind, const DatasetOptions& options) {
  expect_folder(kind_name(kind), folder);
  DatasetPair pair;
  pair.train = read_part(folder, kind, "train", "train", kind == IdxKind::fashion_mnist ? 10 : 0);
  const bool has_test = !options.holds_out() && (!options.test_optional || has_test_files(folder));
  if (has_test) pair.test = read_part(folder, kind, "t10k", "test", kind == IdxKind::fashion_mnist ? 10 : 0);
  if (has_test) pair.train.classes = pair.test.classes = std::max(pair.train.classes, pair.test.classes);
  if (has_test && (pair.train.height != pair.test.height || pair.train.width != pair.test.width)) {
    throw DataError(fmt::format("{}: {}: training images are {} x {}, test images {} x {}; the sizes must be equal",
                                kind_name(kind), folder.string(), pair.train.height, pair.train.width, pair.test.height,
                                pair.test.width));
  }
  if (kind == IdxKind::fashion_mnist) {
    pair.train.mean = pair.test.mean = {0.2860F};
    pair.train.std = pair.test.std = {0.3530F};
    pair.train.class_names = pair.test.class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                                      "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  } else if (options.measured) {
    measure_statistics(pair, kMeasuredImages);
  }
  return pair;
}

}  // namespace vitrine
