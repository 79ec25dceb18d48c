// SPDX-License-Identifier: Apache-2.0
#include "data/file_samples.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "runtime/descriptor.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

/// A plain file with positioned reads.
class OpenFile {
 public:
  explicit OpenFile(std::filesystem::path path)
      : path_(std::move(path)), file_(open_regular_file(path_.string()).descriptor) {}

  void read(int64_t offset, std::span<uint8_t> out) const {
    const int64_t got = read_at(file_, offset, std::as_writable_bytes(out));
    if (got < 0) {
      throw DataError(
          fmt::format("{}: at offset {}: cannot read it: {}", path_.string(), offset, std::strerror(errno)));
    }
    if (got < static_cast<int64_t>(out.size())) {
      throw DataError(
          fmt::format("{}: at offset {}: expected {} bytes, found {}; the file became shorter after it was opened",
                      path_.string(), offset, out.size(), got));
    }
  }

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

class FileSamples final : public Samples {
 public:
  FileSamples(const std::vector<RecordFile>& files, std::vector<uint8_t> labels, int64_t bytes_per_image,
              std::function<void(std::span<const uint8_t>, std::span<uint8_t>)> decode)
      : labels_(std::move(labels)), bytes_per_image_(bytes_per_image), decode_(std::move(decode)) {
    int64_t first = 0;
    for (const RecordFile& file : files) {
      parts_.push_back({OpenFile(file.path), first, file.begin, file.stride});
      first += file.count;
    }
    VITRINE_ASSERT(first == size() && !parts_.empty(), "every image has a label");
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int32_t label(int64_t i) const override { return labels_[static_cast<size_t>(i)]; }
  int64_t held_bytes() const override { return size(); }

  void read_image(int64_t i, std::span<uint8_t> out) const override {
    const auto next = std::upper_bound(parts_.begin(), parts_.end(), i,
                                       [](int64_t sample, const Part& part) { return sample < part.first; });
    const Part& part = *std::prev(next);
    const int64_t offset = part.begin + (i - part.first) * part.stride;
    if (!decode_) return part.file.read(offset, out);
    thread_local std::vector<uint8_t> stored;
    stored.resize(static_cast<size_t>(bytes_per_image_));
    part.file.read(offset, stored);
    decode_(stored, out);
  }

 private:
  struct Part {
    OpenFile file;
    int64_t first, begin, stride;
  };
  std::vector<Part> parts_;
  const std::vector<uint8_t> labels_;
  const int64_t bytes_per_image_;
  const std::function<void(std::span<const uint8_t>, std::span<uint8_t>)> decode_;
};

}  // namespace

std::shared_ptr<const Samples> samples_in_files(
    const std::vector<RecordFile>& files, std::vector<uint8_t> labels, int64_t bytes_per_image,
    std::function<void(std::span<const uint8_t>, std::span<uint8_t>)> decode) {
  return std::make_shared<FileSamples>(files, std::move(labels), bytes_per_image, std::move(decode));
}

std::vector<uint8_t> read_record_bytes(const RecordFile& file) {
  const OpenFile open(file.path);
  std::vector<uint8_t> bytes(static_cast<size_t>(file.count));
  for (int64_t i = 0; i < file.count; ++i)
    open.read(file.begin + i * file.stride, std::span(bytes).subspan(static_cast<size_t>(i), 1));
  return bytes;
}

}  // namespace vitrine
