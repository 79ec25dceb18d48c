// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/private_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/connection.h"
#include "runtime/process_group/handshake.h"

namespace vitrine::process_group {

std::string read_private_file(const std::string& path, size_t most_bytes, std::string& problem) {
  // Opening a fifo must not block.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  problem.clear();
  if (!file || fstat(file.get(), &status) != 0) {
    problem = fmt::format("cannot read it ({})", describe_error(errno));
  } else if (!S_ISREG(status.st_mode)) {
    problem = "it is not a regular file";
  } else if (status.st_uid != geteuid() && status.st_uid != 0) {
    problem = fmt::format("it belongs to another user (number {}); only your own files are trusted", status.st_uid);
  } else if ((status.st_mode & 077) != 0) {
    problem =
        fmt::format("its mode is {:04o}, so other users may open it; use: chmod 600 {}", status.st_mode & 07777, path);
  } else if (static_cast<uint64_t>(status.st_size) > most_bytes) {
    problem = fmt::format("it has {} bytes, expected at most {}", status.st_size, most_bytes);
  }
  if (!problem.empty()) return {};
  std::string content;
  if (!read_content(file, most_bytes, content)) {
    problem = fmt::format("cannot read it ({})", describe_error(errno));
    return {};
  }
  return content;
}

std::string write_private_file(const std::string& path, std::string_view content) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, to_hex(random_bytes()).substr(0, 16));
  {
    const Descriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return describe_error(errno);
    // Independent of the umask and the folder's default access list.
    bool written = fchmod(file.get(), 0600) == 0;
    while (written && !content.empty()) {
      const ssize_t count = write(file.get(), content.data(), content.size());
      written = count > 0 || errno == EINTR;
      if (count > 0) content.remove_prefix(static_cast<size_t>(count));
    }
    if (written) written = std::rename(temporary.c_str(), path.c_str()) == 0;
    if (written) return {};
  }
  const int error = errno;
  unlink(temporary.c_str());
  return describe_error(error);
}

std::string private_address_path(int port) {
  const std::string folder = fmt::format("/tmp/vitrine-{}", geteuid());
  struct stat status {
  }, network{};
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw CommError(fmt::format("{}: cannot create it: {}", folder, describe_error(errno)));
  if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid() ||
      (status.st_mode & 077) != 0) {
    throw CommError(
        fmt::format("{}: expected a folder of this user with mode 0700, for the key of the run; remove it, or set "
                    "VITRINE_SECRET for all processes",
                    folder));
  }
  // Containers may share the folder, but not the port.
  stat("/proc/self/ns/net", &network);
  return fmt::format("{}/rendezvous-{}-{}", folder, network.st_ino, port);
}

}  // namespace vitrine::process_group
