// SPDX-License-Identifier: Apache-2.0
#include "nn/atomic_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

// Bytes written and flushed to the disk at once: the step of the progress on a slow disk.
constexpr size_t kPartBytes = size_t{4} << 20;
constexpr int64_t kFlushBytes = int64_t{32} << 20;

/// The one of stdout and stderr that writes to this file, or -1.
int standard_stream_of(const struct stat& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat standard {};
    if (fstat(stream, &standard) == 0 && standard.st_dev == file.st_dev && standard.st_ino == file.st_ino)
      return stream;
  }
  return -1;
}

/// Ends in a slash.
std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

/// Refuses a link through which another user could choose the file that is written: the rule by which Linux follows
/// links if fs.protected_symlinks is set.
void check_link(const std::string& link) {
  struct stat own {
  }, folder{};
  if (lstat(link.c_str(), &own) != 0 || stat(folder_of(link).c_str(), &folder) != 0) return;
  const bool shared = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
  if (!shared || own.st_uid == geteuid() || own.st_uid == folder.st_uid) return;
  throw DataError(
      fmt::format("{}: it is a symbolic link of another user (number {}) in a folder that all users may write to; "
                  "choose another folder",
                  link, own.st_uid));
}

/// The file that a name refers to after resolving symbolic links; it need not exist.
std::string resolve_links(std::string path) {
  constexpr int kMostLinks = 40;
  for (int i = 0; i < kMostLinks; ++i) {
    std::array<char, PATH_MAX> target{};
    const ssize_t length = readlink(path.c_str(), target.data(), target.size() - 1);
    if (length < 0) return path;
    check_link(path);
    const std::string text(target.data(), static_cast<size_t>(length));
    const size_t slash = path.rfind('/');
    path = text.starts_with('/') || slash == std::string::npos ? text : path.substr(0, slash + 1) + text;
  }
  return path;
}

/// Calls `use` with temporary names in the folder of `path` until it succeeds or fails for another reason than that the
/// name exists.
template <class Use>
bool with_free_name(const std::string& path, std::string& temporary, Use use) {
  constexpr int kMostNames = 10'000;
  const std::string folder = folder_of(path);
  for (int i = 0; i < kMostNames; ++i) {
    temporary = fmt::format("{}vitrine-{}-{}.tmp", folder, getpid(), i);
    if (use(temporary)) return true;
    if (errno != EEXIST) return false;
  }
  return false;
}

/// Gives a name to an open file that has none.
bool name_file(int descriptor, const std::string& path, std::string& temporary) {
  const std::string own = fmt::format("/proc/self/fd/{}", descriptor);
  return with_free_name(path, temporary, [&](const std::string& name) {
    return linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  });
}

int open_unnamed(const std::string& path) {
  return open(folder_of(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

int open_named(const std::string& path, std::string& temporary) {
  int file = -1;
  with_free_name(path, temporary, [&](const std::string& name) {
    file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return file >= 0;
  });
  return file;
}

/// Opens a pipe or device for writing. Whoever reads from a pipe may still be starting: -1 with ENXIO if nobody comes.
int open_for_reader(const std::string& path) {
  constexpr int kTries = 200;
  int file = -1;
  for (int i = 0; i < kTries; ++i) {
    file = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 || errno != ENXIO) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    errno = ENXIO;
  }
  if (file >= 0) fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_NONBLOCK);
  return file;
}

/// True when a file without a name can be given one in the folder of `path`. Checked early, before hours of work rely
/// on it.
bool can_name_files(const std::string& path) {
  const int probe = open_unnamed(path);
  if (probe < 0) return false;
  std::string temporary;
  const bool can = name_file(probe, path, temporary);
  if (can) unlink(temporary.c_str());
  close(probe);
  return can;
}

}  // namespace

void throw_write_error(const std::string& path, const char* what, int code) {
  throw DataError(
      fmt::format("{}: {} ({}); check the folder, its permissions and free space", path, what, std::strerror(code)));
}

int create_temporary(const std::string& path, std::string& temporary) {
  return open_named(resolve_links(path), temporary);
}

AtomicFile::AtomicFile(const std::string& path, std::function<void(int64_t)> progress)
    : path_(resolve_links(path)), progress_(std::move(progress)) {
  struct stat target {};
  const bool exists = stat(path.c_str(), &target) == 0;
  if (!exists && errno != ENOENT) fail("cannot be created");  // such as a name that is too long
  const int stream = exists ? standard_stream_of(target) : -1;
  const bool is_file = !exists || S_ISREG(target.st_mode) || S_ISDIR(target.st_mode);
  if (is_file && stream < 0) {
    open_beside();
    if (exists && S_ISREG(target.st_mode)) keep_mode(target.st_mode & 0777);
  } else {
    path_ = path;  // for a pipe in /dev/fd the link is not a path
    open_in_place(stream);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (named_) unlink(temporary_.c_str());
}

void AtomicFile::open_in_place(int standard_stream) {
  in_place_ = true;
  // stdout and stderr have their own position, and buffered text that must come first.
  if (standard_stream >= 0) std::fflush(standard_stream == STDOUT_FILENO ? stdout : stderr);
  descriptor_ = standard_stream >= 0 ? fcntl(standard_stream, F_DUPFD_CLOEXEC, 0) : open_for_reader(path_);
  if (descriptor_ < 0 && errno == ENXIO) fail("cannot be opened: nobody reads from this pipe");
  if (descriptor_ < 0) fail("cannot be opened");
}

void AtomicFile::open_beside() {
  if (can_name_files(path_)) descriptor_ = open_unnamed(path_);
  if (descriptor_ >= 0) return;
  descriptor_ = open_named(path_, temporary_);
  if (descriptor_ < 0) fail("cannot be created");
  named_ = true;
}

void AtomicFile::keep_mode(unsigned mode) {
  struct stat created {};
  if (fstat(descriptor_, &created) == 0 && ((created.st_mode & 0777) == mode || fchmod(descriptor_, mode) == 0)) return;
  const int code = errno;
  close(std::exchange(descriptor_, -1));  // no destructor runs after a constructor that throws
  if (named_) unlink(temporary_.c_str());
  errno = code;
  fail("cannot be given the mode of the file that it replaces");
}

void AtomicFile::write_some(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(written));
    written_ += written;
  }
}

void AtomicFile::flush() {
  // Pipes and terminals are not on a disk.
  if (fsync(descriptor_) != 0 && !(in_place_ && (errno == EINVAL || errno == EROFS || errno == ENOTSUP)))
    fail("cannot be written");
  flushed_ = written_;
  if (progress_) progress_(flushed_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  for (size_t begin = 0; begin < bytes.size(); begin += kPartBytes) {
    write_some(bytes.subspan(begin, std::min(kPartBytes, bytes.size() - begin)));
    if (written_ - flushed_ >= kFlushBytes) flush();
  }
}

void AtomicFile::write(const std::string& text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  flush();
  if (!in_place_) {
    if (!named_ && !name_file(descriptor_, path_, temporary_)) fail("cannot be created");
    named_ = true;
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be renamed to its final name");
    named_ = false;
  }
  close(std::exchange(descriptor_, -1));
}

void AtomicFile::fail(const char* what) const { throw_write_error(path_, what, errno); }

}  // namespace vitrine
