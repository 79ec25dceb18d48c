// SPDX-License-Identifier: Apache-2.0
#include "runtime/descriptor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

RegularFile open_regular_file(const std::string& path) {
  // Opening a pipe must not wait for its writer.
  RegularFile file{Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  struct stat status {};
  if (!file.descriptor || fstat(file.descriptor.get(), &status) != 0)
    throw DataError(fmt::format("{}: it cannot be opened ({})", path, std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) {
    throw DataError(fmt::format("{}: it is {}, expected a regular file", path,
                                S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe"));
  }
  file.bytes = status.st_size;
  return file;
}

std::string read_regular_file(const std::string& path, int64_t most_bytes) {
  const RegularFile file = open_regular_file(path);
  if (file.bytes > most_bytes)
    throw DataError(fmt::format("{}: it has {} bytes, expected at most {}", path, file.bytes, most_bytes));
  std::string text;
  if (!read_content(file.descriptor, static_cast<size_t>(file.bytes), text))
    throw DataError(fmt::format("{}: it cannot be read ({})", path, std::strerror(errno)));
  return text;
}

int64_t read_at(const Descriptor& file, int64_t offset, std::span<std::byte> out) {
  size_t size = 0;
  for (ssize_t count = 1; count != 0 && size < out.size();) {
    count =
        pread(file.get(), out.data() + size, out.size() - size, static_cast<off_t>(offset) + static_cast<off_t>(size));
    if (count > 0) size += static_cast<size_t>(count);
    if (count < 0 && errno != EINTR) return -1;
  }
  return static_cast<int64_t>(size);
}

bool read_content(const Descriptor& file, size_t most_bytes, std::string& content) {
  content.assign(most_bytes, '\0');
  const int64_t size = read_at(file, 0, std::as_writable_bytes(std::span(content)));
  content.resize(static_cast<size_t>(std::max<int64_t>(size, 0)));
  return size >= 0;
}

}  // namespace vitrine
