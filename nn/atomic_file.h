// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>

namespace vitrine {

/// A file that appears under its name only when it is complete: written to a temporary file beside it, which commit() renames. Without commit()
/// the temporary file is removed and whatever was there before stays.
class AtomicFile {
 public:
  /// throws DataError, as all of these do, with the path and the system's reason.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(const std::string& text);
  /// Flushes to the disk, then renames.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
};

}  // namespace vitrine
