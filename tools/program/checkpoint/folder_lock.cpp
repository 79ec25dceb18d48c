// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/folder_lock.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine::tools {

FolderLock::FolderLock(const std::string& option, const std::string& folder, double patience_seconds) {
  const std::string path = folder + "/.lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_ < 0) {
    if (errno == ELOOP) throw DataError(fmt::format("{} {}: {} is a symbolic link; remove it", option, folder, path));
    throw DataError(fmt::format("{} {}: {} cannot be opened ({}); choose a folder that you may write to", option,
                                folder, path, std::strerror(errno)));
  }
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_seconds);
  while (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // the file system has no locks
    if (std::chrono::steady_clock::now() >= give_up) {
      close(file_);
      throw DataError(
          fmt::format("{} {}: another process works in this folder; wait until it has ended, or choose another folder",
                      option, folder));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

FolderLock::~FolderLock() { close(file_); }

}  // namespace vitrine::tools
