// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Keeps other processes from working in a folder as long as the object lives: an exclusive lock of the file `.lock` in
/// it. The system releases the lock when the process ends in any way.
class FolderLock {
 public:
  /// requires that the folder exists
  ///   option  that named the folder, for messages
  ///   patience_seconds  how long a lock of another process is waited for: that process may be ending
  /// throws  DataError: the file cannot be opened, or another process holds the lock. File systems without locks are
  ///         not locked.
  FolderLock(const std::string& option, const std::string& folder, double patience_seconds = 1.0);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace vitrine::tools
