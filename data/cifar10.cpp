// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/file_samples.h"
#include "data/input_file.h"
#include "data/readers.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32, kChannels = 3, kClasses = 10;
constexpr int64_t kPlane = kSide * kSide;
constexpr int64_t kRecord = 1 + kChannels * kPlane;
constexpr std::array<const char*, 5> kTrainFiles{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                 "data_batch_4.bin", "data_batch_5.bin"};
constexpr const char* kTestFile = "test_batch.bin";
constexpr const char* kSubfolder = "cifar-10-batches-bin";

[[noreturn]] void fail_missing(const std::vector<fs::path>& tried, const fs::path& folder) {
  std::vector<std::string> names;
  std::string hint;
  for (const fs::path& path : tried) {
    names.push_back(path.string());
    const std::string packed = path.string() + ".xz";
    if (hint.empty() && fs::exists(packed))
      hint = fmt::format("; found {}: unpack it and the other files with xz -dk", packed);
  }
  if (hint.empty() && (fs::exists(folder / "data_batch_1") || fs::exists(folder / "cifar-10-batches-py"))) {
    hint = "; the folder seems to contain the Python version, but the binary version is needed";
  }
  throw DataError(
      fmt::format("cifar10: no {}; tried {}{}. Expected are data_batch_1.bin to data_batch_5.bin and test_batch.bin, "
                  "which the CIFAR-10 binary version "
                  "(cifar-10-binary.tar.gz, from https://www.cs.toronto.edu/~kriz/cifar.html) holds in its folder {}",
                  tried.front().filename().string(), fmt::join(names, ", "), hint, kSubfolder));
}

fs::path find_folder(const fs::path& folder) {
  std::vector<fs::path> tried;
  for (const fs::path& candidate : {folder, folder / kSubfolder}) {
    tried.push_back(candidate / kTrainFiles[0]);
    if (fs::exists(tried.back())) return candidate;
  }
  fail_missing(tried, folder);
}

void interleave(std::span<const uint8_t> planes, std::span<uint8_t> pixels) {
  for (size_t i = 0; i < kPlane; ++i) {
    for (size_t c = 0; c < kChannels; ++c) pixels[i * kChannels + c] = planes[c * kPlane + i];
  }
}

/// The records of one file, starting at their labels.
RecordFile check_file(const fs::path& path) {
  const InputFile file(path, InputFile::Packing::none);
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  if (bytes == 0 || bytes % kRecord != 0) {
    file.fail(bytes / kRecord * kRecord,
              fmt::format("whole records of {} bytes, 10000 of them in the published files ({} bytes)", kRecord,
                          10'000 * kRecord),
              fmt::format("a file of {} bytes", bytes));
  }
  return {path, bytes / kRecord, 0, kRecord};
}

void append_labels(const RecordFile& records, std::vector<uint8_t>& labels) {
  for (const uint8_t label : read_record_bytes(records)) {
    const auto i = static_cast<int64_t>(labels.size());
    if (label >= kClasses) {
      const int64_t record = i % records.count;  // all files have the same number
      InputFile(records.path, InputFile::Packing::none)
          .fail(record * kRecord, fmt::format("a label from 0 to {} in record {}", kClasses - 1, record),
                fmt::format("{}", label));
    }
    labels.push_back(label);
  }
}

std::shared_ptr<const Samples> open_records(const std::vector<RecordFile>& files) {
  std::vector<uint8_t> labels;
  std::vector<RecordFile> images;
  for (RecordFile file : files) {
    append_labels(file, labels);
    file.begin = 1;  // after the label
    images.push_back(std::move(file));
  }
  return samples_in_files(images, std::move(labels), kChannels * kPlane, interleave);
}

std::vector<std::string> read_class_names(const fs::path& folder) {
  const fs::path path = folder / "batches.meta.txt";
  if (!fs::exists(path))
    return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  std::ifstream file(path);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (static_cast<int64_t>(names.size()) != kClasses) {
    throw DataError(fmt::format("{}: expected {} class names, one on a line, found {}; correct or remove the file",
                                path.string(), kClasses, names.size()));
  }
  return names;
}

Dataset empty_set(const char* name, const std::vector<std::string>& class_names) {
  Dataset set;
  set.name = name;
  set.height = set.width = kSide;
  set.channels = kChannels;
  set.classes = kClasses;
  set.mean = {0.4914F, 0.4822F, 0.4465F};
  set.std = {0.2470F, 0.2435F, 0.2616F};
  set.class_names = class_names;
  return set;
}

}  // namespace

DatasetPair open_cifar10(const fs::path& given) {
  expect_folder("cifar10", given);
  const fs::path folder = find_folder(given);
  const std::vector<std::string> class_names = read_class_names(folder);
  DatasetPair pair{empty_set("cifar10 train", class_names), empty_set("cifar10 test", class_names)};
  for (const char* name : {kTrainFiles[1], kTrainFiles[2], kTrainFiles[3], kTrainFiles[4], kTestFile}) {
    if (!fs::exists(folder / name)) fail_missing({folder / name}, folder);
  }
  std::vector<RecordFile> files;
  for (const char* name : kTrainFiles) {
    files.push_back(check_file(folder / name));
    // A download that stops at the end of a record would otherwise go unnoticed.
    if (files.back().count != files.front().count) {
      throw DataError(
          fmt::format("{}: expected {} records as in {}, found {}; the file is incomplete, download it again",
                      (folder / name).string(), files.front().count, kTrainFiles[0], files.back().count));
    }
  }
  pair.train.samples = open_records(files);
  pair.test.samples = open_records({check_file(folder / kTestFile)});
  return pair;
}

}  // namespace vitrine
