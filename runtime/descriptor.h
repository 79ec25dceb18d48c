// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace vitrine {

/// An open file descriptor, closed on destruction.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  /// Gives the descriptor to the caller, who closes it.
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A regular file that is open for reading.
struct RegularFile {
  Descriptor descriptor;
  int64_t bytes = 0;
};

/// Opens a file that a user, or a data set, has named. throws DataError "PATH: it ..." for what cannot be opened and
/// for what is no regular file: reading a pipe or a device may never end. Never waits.
RegularFile open_regular_file(const std::string& path);
/// Its content. throws DataError, also for a file of more than `most_bytes`.
std::string read_regular_file(const std::string& path, int64_t most_bytes);

/// Reads a regular file from this offset. Returns the bytes read, fewer than `out` has only at the end of the file; -1:
/// errno gives the cause.
int64_t read_at(const Descriptor& file, int64_t offset, std::span<std::byte> out);
/// Reads the content of a regular file, at most `most_bytes` of it. False: errno gives the cause.
bool read_content(const Descriptor& file, size_t most_bytes, std::string& content);

}  // namespace vitrine
