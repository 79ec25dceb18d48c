// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace vitrine {

/// Throws DataError: "PATH: WHAT (REASON); ...", with the system's reason for the errno `code` and a remedy.
[[noreturn]] void throw_write_error(const std::string& path, const char* what, int code);

/// Creates an empty file under a new, short name, vitrine-PID-N.tmp, in the folder of `path`, or of the file that
/// `path` points to. Files of that name that a killed process has left are kept: another number is chosen. Returns its
/// descriptor, open for writing, and its path in `temporary`; -1 with errno if that fails. throws DataError for a link
/// that AtomicFile refuses.
int create_temporary(const std::string& path, std::string& temporary);

/// A file that appears under its name only when it is complete: it is written without a name or, if the file system
/// does not support that, under a temporary name in the same folder, and commit() renames it. Without commit(), an
/// existing file is left unchanged. A symbolic link is kept: the file that it points to is replaced. A link that
/// another user has placed in a folder such as /tmp is refused. The new file has the mode of the old one; without an
/// old one, the umask decides. Anything other than a file, such as /dev/stdout or a pipe, is written to directly.
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
  void keep_mode(unsigned mode);
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
