// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/input_file.h"
#include "data/readers.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32, kChannels = 3, kPlane = kSide * kSide;

/// What distinguishes CIFAR-100 from CIFAR-10.
struct Format {
  const char* kind;
  const char* title;
  const char* archive;
  const char* subfolder;
  std::vector<const char*> train_files;
  const char* test_file;
  const char* names_file;
  std::vector<std::string> class_names;  // where names_file is missing
  int64_t label_bytes, classes;          // the last label byte counts: CIFAR-100's first one is the superclass
  std::array<float, 4> mean, std;

  int64_t record_bytes() const { return label_bytes + kChannels * kPlane; }
};

Format cifar10() {
  return {"cifar10",
          "CIFAR-10",
          "cifar-10-binary.tar.gz",
          "cifar-10-batches-bin",
          {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
          "test_batch.bin",
          "batches.meta.txt",
          {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"},
          1,
          10,
          {0.4914F, 0.4822F, 0.4465F},
          {0.2470F, 0.2435F, 0.2616F}};
}

Format cifar100() {
  return {"cifar100",
          "CIFAR-100",
          "cifar-100-binary.tar.gz",
          "cifar-100-binary",
          {"train.bin"},
          "test.bin",
          "fine_label_names.txt",
          {},
          2,
          100,
          {0.5071F, 0.4865F, 0.4409F},
          {0.2673F, 0.2564F, 0.2762F}};
}

[[noreturn]] void fail_missing(const Format& format, const std::vector<fs::path>& tried, const fs::path& folder) {
  std::vector<std::string> names;
  std::string hint;
  for (const fs::path& path : tried) {
    names.push_back(path.string());
    const std::string packed = path.string() + ".xz";
    if (hint.empty() && is_there(packed))
      hint = fmt::format("; found {}: unpack it and the other files with xz -dk", packed);
  }
  const std::string file = format.train_files[0], python_version = fs::path(file).stem().string();  // has no ending
  if (const auto found = hint.empty() ? find_below(folder, {"/" + file}) : std::nullopt;
      found && found->parent_path() != folder)
    hint = fmt::format("; found {}: use {}:{}", found->string(), format.kind, found->parent_path().string());
  if (const auto found = hint.empty() ? find_below(folder, {"/" + python_version}) : std::nullopt)
    hint = fmt::format("; {} is of the Python version, but the binary version is needed", found->string());
  throw DataError(fmt::format(
      "{}: no {}; tried {}{}. Expected: {} and {} from the binary version of {} ({}, at "
      "https://www.cs.toronto.edu/~kriz/cifar.html), in DIR or in DIR/{}",
      format.kind, tried.front().filename().string(), fmt::join(names, ", "), hint, fmt::join(format.train_files, ", "),
      format.test_file, format.title, format.archive, format.subfolder));
}

fs::path find_folder(const Format& format, const fs::path& folder) {
  std::vector<fs::path> tried;
  for (const fs::path& candidate : {folder, folder / format.subfolder}) {
    tried.push_back(candidate / format.train_files[0]);
    if (is_there(tried.back())) return candidate;
  }
  fail_missing(format, tried, folder);
}

void interleave(std::span<const uint8_t> planes, std::span<uint8_t> pixels) {
  for (size_t i = 0; i < kPlane; ++i) {
    for (size_t c = 0; c < kChannels; ++c) pixels[i * kChannels + c] = planes[c * kPlane + i];
  }
}

/// The records of one file, starting at their labels.
RecordFile check_file(const Format& format, const fs::path& path) {
  const int64_t record_bytes = format.record_bytes();
  const InputFile file(path, InputFile::Packing::none);
  const int64_t bytes = file.file_bytes();
  if (bytes == 0 || bytes % record_bytes != 0) {
    file.expect_unknown_kind(fmt::format("the binary version of {}", format.title));
    file.fail(bytes / record_bytes * record_bytes, fmt::format("whole records of {} bytes", record_bytes),
              fmt::format("a file of {} bytes", bytes));
  }
  return {path, bytes / record_bytes, format.label_bytes - 1, record_bytes};
}

void append_labels(const Format& format, const RecordFile& records, std::vector<uint8_t>& labels) {
  for (const uint8_t label : read_record_bytes(records)) {
    const auto i = static_cast<int64_t>(labels.size());
    if (label >= format.classes) {
      const int64_t record = i % records.count;  // all files have the same number
      InputFile(records.path, InputFile::Packing::none)
          .fail(record * records.stride + records.begin,
                fmt::format("a label from 0 to {} in record {}", format.classes - 1, record), fmt::format("{}", label));
    }
    labels.push_back(label);
  }
}

std::shared_ptr<const Samples> open_records(const Format& format, const std::vector<RecordFile>& files) {
  std::vector<uint8_t> labels;
  std::vector<RecordFile> images;
  for (RecordFile file : files) {
    append_labels(format, file, labels);
    file.begin = format.label_bytes;
    images.push_back(std::move(file));
  }
  return samples_in_files(images, std::move(labels), kChannels * kPlane, interleave);
}

std::vector<std::string> read_class_names(const Format& format, const fs::path& folder) {
  const fs::path path = folder / format.names_file;
  if (!is_there(path)) return format.class_names;
  constexpr int64_t kMostBytes = 65'536;
  std::vector<std::string> names;
  for (std::string& line : split_text(read_regular_file(path.string(), kMostBytes), '\n')) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (static_cast<int64_t>(names.size()) != format.classes) {
    throw DataError(fmt::format("{}: expected {} class names, one on a line, found {}; correct or remove the file",
                                path.string(), format.classes, names.size()));
  }
  return names;
}

Dataset empty_set(const Format& format, const char* part, const std::vector<std::string>& class_names) {
  Dataset set;
  set.name = fmt::format("{} {}", format.kind, part);
  set.height = set.width = kSide;
  set.channels = kChannels;
  set.classes = format.classes;
  set.mean = format.mean;
  set.std = format.std;
  set.class_names = class_names;
  return set;
}

}  // namespace

DatasetPair open_cifar(const fs::path& given, CifarKind kind, const DatasetOptions& options) {
  const Format format = kind == CifarKind::cifar10 ? cifar10() : cifar100();
  expect_folder(format.kind, given);
  const fs::path folder = find_folder(format, given);
  const std::vector<std::string> class_names = read_class_names(format, folder);
  DatasetPair pair{empty_set(format, "train", class_names), empty_set(format, "test", class_names)};
  std::vector<RecordFile> files;
  for (const char* name : format.train_files) {
    if (!is_there(folder / name)) fail_missing(format, {folder / name}, folder);
    files.push_back(check_file(format, folder / name));
    // A download that stops at the end of a record would otherwise go unnoticed.
    if (files.back().count != files.front().count) {
      throw DataError(
          fmt::format("{}: expected {} records as in {}, found {}; the file is incomplete, download it again",
                      (folder / name).string(), files.front().count, format.train_files[0], files.back().count));
    }
  }
  pair.train.samples = open_records(format, files);
  const fs::path test = folder / format.test_file;
  if (options.holds_out() || (options.test_optional && !is_there(test))) return pair;
  if (!is_there(test)) fail_missing(format, {test}, folder);
  pair.test.samples = open_records(format, {check_file(format, test)});
  return pair;
}

}  // namespace vitrine
