// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace vitrine {

/// A file, plain or gzip, read from front to back. Private to the readers. Every failure is a DataError with file,
/// offset (in the unpacked bytes), expected and found.
class InputFile {
 public:
  enum class Packing { none, gzip };
  InputFile(std::filesystem::path path, Packing packing);

  /// Fills `out`; `what` names the bytes in the message if they are missing.
  void read(std::span<uint8_t> out, const std::string& what);
  uint32_t read_big_endian(const std::string& what);
  /// Reads the last `bytes` bytes of the file. Memory grows as data arrives, so a header cannot cause a large
  /// allocation.
  std::vector<uint8_t> read_all(int64_t bytes, const std::string& what);
  /// throws unless a plain file contains exactly `bytes` more.
  void expect_just(int64_t bytes, const std::string& what) const;

  /// throws if a file that is not what `expected` says is of a kind that is known, such as a Git LFS pointer.
  void expect_unknown_kind(const std::string& expected) const;

  Packing packing() const { return packing_; }
  int64_t offset() const { return offset_; }
  /// The size of the file as it is stored.
  int64_t file_bytes() const { return file_bytes_; }
  [[noreturn]] void fail(int64_t offset, const std::string& expected, const std::string& found) const;

 private:
  // Reads at most `size` bytes; fewer at the end of the file.
  int64_t read_some(uint8_t* out, int64_t size);
  // throws if bytes are left.
  void expect_end();
  // throws if the file cannot contain `bytes` more.
  void expect_room(int64_t bytes, const std::string& what) const;
  // throws because the file ends after `found` of `bytes`.
  [[noreturn]] void fail_short(int64_t bytes, int64_t found, const std::string& what) const;

  struct Close {
    void operator()(void* file) const noexcept;
  };
  std::filesystem::path path_;
  Packing packing_;
  int64_t file_bytes_ = 0;
  int64_t offset_ = 0;
  std::unique_ptr<void, Close> file_;
};

/// Layout of the records of a plain file: `count` records, `stride` bytes apart; the first image is at `begin`.
struct RecordFile {
  std::filesystem::path path;
  int64_t count = 0, begin = 0, stride = 0;
};

/// Samples whose images are read from files on request, by position, in any order; labels stay in memory. Private to
/// the readers.
///   decode  converts a stored image into its pixels (H, W, C); empty: they are the same
/// throws DataError if a file cannot be opened.
std::shared_ptr<const Samples> samples_in_files(
    const std::vector<RecordFile>& files, std::vector<uint8_t> labels, int64_t bytes_per_image,
    std::function<void(std::span<const uint8_t> stored, std::span<uint8_t> pixels)> decode = {});

/// Returns the byte at `begin` of each record: the labels. throws DataError.
std::vector<uint8_t> read_record_bytes(const RecordFile& file);

}  // namespace vitrine
