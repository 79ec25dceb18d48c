// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace vitrine {

/// A file that appears under its name only when it is complete: it is written without a name or, if the file system does not support that, under a
/// temporary name in the same folder, and commit() renames it. Without commit(), an existing file is left unchanged. A symbolic link is kept: the
/// file that it points to is replaced. Anything other than a file, such as /dev/stdout or a pipe, is written to directly.
class AtomicFile {
 public:
  ///   progress  called with the bytes written so far, each time that more of the file is on the disk
  /// throws  DataError with the path and the system's reason; so do all functions below
  explicit AtomicFile(const std::string& path, std::function<void(int64_t bytes)> progress = {});
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(const std::string& text);
  /// Flushes to the disk, then gives the file its name.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;
  void open_in_place(int standard_stream);
  void open_beside();
  void write_some(std::span<const std::byte> bytes);
  void flush();

  std::string path_, temporary_;
  std::function<void(int64_t)> progress_;
  int descriptor_ = -1;
  bool in_place_ = false;  // not a file: nothing to rename, nothing on a disk
  bool named_ = false;     // temporary_ exists
  int64_t written_ = 0, flushed_ = 0;
};

}  // namespace vitrine
