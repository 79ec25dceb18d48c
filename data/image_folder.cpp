// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/image_file.h"
#include "data/readers.h"
#include "data/settings.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTestFolders[] = {"val", "valid", "validation", "test"};  // the first that exists

/// Images that are decoded, resized and cropped when they are requested. Only their paths stay in memory.
class FolderSamples final : public Samples {
 public:
  FolderSamples(fs::path root, int64_t side) : root_(std::move(root)), side_(side) {}

  /// path  below the root
  void add(const std::string& path, int32_t label) {
    begins_.push_back(paths_.size());
    paths_ += path;
    labels_.push_back(label);
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int32_t label(int64_t i) const override { return labels_[static_cast<size_t>(i)]; }
  int64_t held_bytes() const override {
    return static_cast<int64_t>(paths_.capacity() + begins_.capacity() * sizeof begins_[0] +
                                labels_.capacity() * sizeof labels_[0]);
  }
  void read_image(int64_t i, std::span<uint8_t> out) const override {
    const auto index = static_cast<size_t>(i);
    const size_t end = index + 1 < begins_.size() ? begins_[index + 1] : paths_.size();
    resize_and_crop(read_image_file(root_ / paths_.substr(begins_[index], end - begins_[index])), side_, out);
  }

 private:
  const fs::path root_;
  const int64_t side_;
  std::string paths_;  // one after the other
  std::vector<size_t> begins_;
  std::vector<int32_t> labels_;
};

[[noreturn]] void fail(const fs::path& path, const std::string& found) {
  throw DataError(
      {fmt::format("image-folder: {}: {}; expected DIR/train/CLASS/IMAGE.jpg and DIR/val/CLASS/IMAGE.jpg (or {}), or "
                   "with ",
                   path.string(), found, fmt::join(std::span(kTestFolders).subspan(1), ", ")),
       propose(settings::kDatasetValSplit, "0.1"), " only DIR/train/CLASS/IMAGE.jpg or DIR/CLASS/IMAGE.jpg"});
}

/// Tools put folders and files of their own, such as .ipynb_checkpoints and macOS's ._1.jpg, beside classes and images.
bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_folder(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) fail(path, fmt::format("it cannot be opened ({})", error.message()));
  return fs::is_directory(status);
}

/// The names of the folders in a folder, sorted.
std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    if (std::error_code ignored; entries->is_directory(ignored) && !is_hidden(path))
      names.push_back(path.filename().string());
  }
  if (error) fail(folder, fmt::format("it cannot be read ({})", error.message()));
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> class_folders(const fs::path& part) {
  std::vector<std::string> names = folders_in(part);
  if (names.empty()) fail(part, "it has no class folders");
  return names;
}

enum class FileKind { image, other_image, ignored };

FileKind kind_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (ending == ".jpg" || ending == ".jpeg" || ending == ".png") return FileKind::image;
  for (const char* other : {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}) {
    if (ending == other) return FileKind::other_image;
  }
  return FileKind::ignored;
}

/// Refuses a link to a folder that contains it, in which the search for images would go round in circles.
void refuse_loop(const fs::path& link) {
  std::error_code ignored;
  for (fs::path above = link.parent_path(); above.has_relative_path(); above = above.parent_path()) {
    if (fs::equivalent(link, above, ignored)) fail(link, "it is a link to a folder that contains it; remove it");
  }
}

/// The images of one class, in torchvision's order: by folder, then by name.
std::vector<fs::path> images_of(const fs::path& folder) {
  std::vector<fs::path> images;
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, fs::directory_options::follow_directory_symlink, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    if (std::error_code ignored; entries->is_directory(ignored)) {
      if (is_hidden(path)) entries.disable_recursion_pending();
      if (entries->is_symlink(ignored)) refuse_loop(path);
      continue;
    }
    const FileKind kind = kind_of(path);
    if (kind == FileKind::ignored || is_hidden(path)) continue;
    if (kind == FileKind::other_image) {
      throw DataError(
          fmt::format("image-folder: {}: only JPEG and PNG images are read; convert or remove it", path.string()));
    }
    images.push_back(path);
  }
  if (error) fail(folder, fmt::format("it cannot be read ({})", error.message()));
  if (images.empty()) fail(folder, "it has no image that ends in .jpg, .jpeg or .png");
  std::ranges::sort(images, [](const fs::path& a, const fs::path& b) {
    const std::string folder_a = a.parent_path().string(), folder_b = b.parent_path().string();
    return folder_a != folder_b ? folder_a < folder_b : a.filename().string() < b.filename().string();
  });
  return images;
}

Dataset open_part(const fs::path& part, const char* name, const std::vector<std::string>& classes, int64_t side) {
  auto samples = std::make_shared<FolderSamples>(part, side);
  for (size_t label = 0; label < classes.size(); ++label) {
    for (const fs::path& image : images_of(part / classes[label]))
      samples->add(image.lexically_relative(part).string(), static_cast<int32_t>(label));
  }
  Dataset set;
  set.name = fmt::format("image-folder {}", name);
  set.height = set.width = side;
  set.channels = 3;
  set.classes = static_cast<int64_t>(classes.size());
  set.samples = std::move(samples);
  // Mean and deviation of ImageNet, which torchvision's models expect.
  set.mean = {0.485F, 0.456F, 0.406F};
  set.std = {0.229F, 0.224F, 0.225F};
  set.class_names = classes;
  return set;
}

Dataset open_test(const fs::path& test, const fs::path& train, const std::vector<std::string>& classes, int64_t side) {
  const std::vector<std::string> test_classes = class_folders(test);
  if (classes != test_classes) {
    std::vector<std::string> different;
    std::ranges::set_symmetric_difference(classes, test_classes, std::back_inserter(different));
    fail(test, fmt::format("its classes differ from those of {}, in {}", train.string(),
                           excerpt(fmt::format("{}", fmt::join(different, ", ")))));
  }
  return open_part(test, "test", classes, side);
}

}  // namespace

DatasetPair open_image_folder(const fs::path& folder, const DatasetOptions& options) {
  expect_folder("image-folder", folder);
  const bool has_parts = is_folder(folder / "train") && (!options.holds_out() || !folders_in(folder / "train").empty());
  if (!has_parts && !options.holds_out()) fail(folder, "it has no folder train");
  const fs::path train = has_parts ? folder / "train" : folder;
  const std::vector<std::string> classes = class_folders(train);
  DatasetPair pair;
  if (!options.holds_out()) {
    const auto* const name =
        std::ranges::find_if(kTestFolders, [&](const char* candidate) { return is_folder(folder / candidate); });
    const bool found = name != std::end(kTestFolders);
    if (!found && !options.test_optional)
      fail(folder, fmt::format("it has no folder {}", fmt::join(kTestFolders, ", ")));
    if (found) pair.test = open_test(folder / *name, train, classes, options.image_size);
  }
  pair.train = open_part(train, "train", classes, options.image_size);
  // Last, so that a missing flag does not hide what is wrong with the folder.
  if (options.image_size < 1) {
    throw ConfigError({"image-folder: images have many sizes, and a batch has one; use, for example, ",
                       propose(settings::kDatasetImageSize, "64")});
  }
  return pair;
}

}  // namespace vitrine
