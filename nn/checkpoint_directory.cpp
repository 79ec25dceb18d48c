// SPDX-License-Identifier: Apache-2.0
#include "nn/checkpoint_directory.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr const char* kLockFile = ".lock";

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw DataError(
      fmt::format("{}: no checkpoints can be written there ({}); choose a folder that you may write to", path, reason));
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::optional<int64_t> step = parse_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return step && *step >= 0 && checkpoint_name(*step) == name ? step : std::nullopt;
}

/// Calls `visit` with each entry of a directory.
template <class Visit>
void for_each_entry(const std::string& directory, const Visit& visit) {
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) visit(*entries);
  if (error) throw DataError(fmt::format("{}: the folder cannot be read ({})", directory, error.message()));
}

/// Makes a directory and those above it, and flushes the new entries to the disk.
void make_directory(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> above;  // of the directories that are missing
  for (fs::path missing = fs::absolute(path, error).lexically_normal();
       !fs::exists(missing, error) && missing.has_relative_path();) {
    missing = missing.parent_path();
    above.push_back(missing);
  }
  fs::create_directories(path, error);
  if (error) refuse(path, error.message());
  for (const fs::path& parent : above) flush_folder(parent.string());
}

void remove_temporaries(const std::string& directory) {
  std::vector<fs::path> left;
  for_each_entry(directory, [&](const fs::directory_entry& entry) {
    if (entry.path().filename().string().starts_with(kCheckpointTemporaryPrefix)) left.push_back(entry.path());
  });
  for (const fs::path& path : left) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error)
      throw DataError(
          fmt::format("{}: the rest of an interrupted save cannot be removed ({})", path.string(), error.message()));
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::vector<NamedCheckpoint> list_checkpoints(const std::string& directory) {
  std::vector<NamedCheckpoint> found;
  std::error_code error;
  if (!fs::exists(directory, error)) return found;
  for_each_entry(directory, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    const std::optional<int64_t> step = step_of(entry.path().filename().string());
    if (step && entry.is_directory(ignored)) found.push_back({*step, entry.path().string()});
  });
  std::ranges::sort(found, [](const NamedCheckpoint& a, const NamedCheckpoint& b) { return a.step < b.step; });
  return found;
}

std::optional<WholeCheckpoint> newest_whole_checkpoint(const std::string& directory,
                                                       const std::function<void(const std::string&)>& skipped) {
  const std::vector<NamedCheckpoint> found = list_checkpoints(directory);
  for (auto checkpoint = found.rbegin(); checkpoint != found.rend(); ++checkpoint) {
    try {
      return WholeCheckpoint{checkpoint->path, read_checkpoint(checkpoint->path)};
    } catch (const DataError& error) {
      skipped(error.what());
    }
  }
  return std::nullopt;
}

CheckpointDirectory::CheckpointDirectory(const std::string& path, double patience_seconds) : path_(path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) refuse(path, "it is a file");
  if (is_checkpoint(path)) {
    const fs::path parent = fs::canonical(path, error).parent_path();
    throw DataError(
        fmt::format("{}: it is a checkpoint itself, not a folder of checkpoints; name the folder that contains it, {}",
                    path, parent.string()));
  }
  make_directory(path);
  lock_ = Descriptor(open((fs::path(path) / kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock_) refuse(path, errno == ELOOP ? "its file .lock is a symbolic link" : std::strerror(errno));
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_seconds);
  while (!try_lock()) {
    if (std::chrono::steady_clock::now() >= give_up) {
      throw DataError(fmt::format(
          "{}: another process writes checkpoints there; wait until it has ended, or choose another folder", path));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // Their writer has exited, because this process holds the lock now. Without locks it may still be running.
  if (locked_) remove_temporaries(path);
}

bool CheckpointDirectory::try_lock() {
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return locked_ = true;
  return errno != EWOULDBLOCK && errno != EINTR;  // the file system has no locks
}

void CheckpointDirectory::point_link(const std::string& link, const std::string& name) {
  const fs::path path = fs::path(path_) / link;
  const fs::path temporary = fs::path(path_) / fmt::format("{}{}-{}", kCheckpointTemporaryPrefix, link, getpid());
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(name, temporary, error);
  if (!error) fs::rename(temporary, path, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  throw DataError(fmt::format("{}: the link to {} cannot be made ({})", path.string(), name, error.message()));
}

}  // namespace vitrine
