// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace vitrine {

/// A file read front to back, plain or gzip. Private to the readers. Every failure is a DataError with file, offset (in the unpacked bytes),
/// expected and found.
class InputFile {
 public:
  enum class Packing { none, gzip };
  InputFile(std::filesystem::path path, Packing packing);

  /// Fills `out`; `what` names the bytes in the message when they are not there.
  void read(std::span<uint8_t> out, const std::string& what);
  uint32_t read_big_endian(const std::string& what);
  /// throws when bytes are left.
  void expect_end();
  /// throws when the file cannot hold `bytes` more: asked before memory is taken for what a header claims.
  void expect_room(int64_t bytes, const std::string& what) const;

  int64_t offset() const { return offset_; }
  [[noreturn]] void fail(int64_t offset, const std::string& expected, const std::string& found) const;

 private:
  // At most `size` bytes; fewer at the end of the file.
  int64_t read_some(uint8_t* out, int64_t size);

  struct Close {
    void operator()(void* file) const noexcept;
  };
  std::filesystem::path path_;
  Packing packing_;
  int64_t file_bytes_ = 0;
  int64_t offset_ = 0;
  std::unique_ptr<void, Close> file_;
};

}  // namespace vitrine
