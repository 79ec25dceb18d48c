// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace vitrine {

/// A file that appears under its name only when it is complete: written without a name, or, where the file system has no such files, under a
/// temporary one beside it, and put in place by commit(). Without commit() whatever was there before stays. A symbolic link stays one: the file that
/// it points to is replaced. What is no file, like /dev/stdout or a pipe, is written to directly.
class AtomicFile {
 public:
  /// throws DataError, as all of these do, with the path and the system's reason.
  ///   progress  called each time that more of the file is on the disk, with its bytes so far
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
  bool in_place_ = false;  // no file: there is nothing to put in place, and nothing on a disk
  bool named_ = false;     // temporary_ exists
  int64_t written_ = 0, flushed_ = 0;
};

}  // namespace vitrine
