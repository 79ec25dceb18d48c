// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/rendezvous.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <sstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/connection.h"
#include "runtime/process_group/launch.h"
#include "runtime/process_group/sockets.h"
#include "runtime/settings.h"
#include "runtime/text.h"

namespace vitrine {
namespace process_group {
namespace {

constexpr size_t kLongestAddress = 65536;
constexpr size_t kLeastSecretBytes = 16;
constexpr const char* kNotRegular = "it is not a regular file";

/// See read_private_file(); of a file that is not private, owner and mode do not matter.
std::string read_file(const std::string& path, size_t most_bytes, bool only_private, std::string& problem) {
  // Opening a fifo must not block.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  problem.clear();
  if (!file || fstat(file.get(), &status) != 0) {
    problem = fmt::format("cannot read it ({})", describe_error(errno));
  } else if (!S_ISREG(status.st_mode)) {
    problem = kNotRegular;
  } else if (only_private && status.st_uid != geteuid() && status.st_uid != 0) {
    problem = fmt::format("it belongs to another user (number {}); only your own files are trusted", status.st_uid);
  } else if (only_private && (status.st_mode & 077) != 0) {
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

/// throws ConfigError unless the secret is empty or long enough.
void check_secret(std::string_view secret, const char* name) {
  if (secret.empty() || secret.size() >= kLeastSecretBytes) return;
  throw ConfigError(
      fmt::format("{}: the secret has {} bytes, expected at least {}; create one with: openssl rand -hex 32", name,
                  secret.size(), kLeastSecretBytes));
}

/// Path at which rank 0 stores its address for this user's processes on this machine when it listens on this port of
/// the loopback interface, in a folder of mode 0700, which this function creates. throws CommError if the folder
/// belongs to another user or is accessible to others.
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

}  // namespace

std::string read_private_file(const std::string& path, size_t most_bytes, std::string& problem) {
  return read_file(path, most_bytes, true, problem);
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

std::string Address::str() const {
  std::string text = fmt::format("vitrine {} {} {}", to_hex(key), port, host_name);
  for (const std::string& host : hosts) text += " " + host;
  return text + "\n";
}

Address Address::parse(const std::string& text) {
  std::istringstream in(text);
  std::string magic, digits;
  Address address;
  const bool whole = (in >> magic >> digits >> address.port >> address.host_name) && magic == "vitrine";
  address.key = from_hex(digits);
  if (!whole || address.key.size() != kKeyBytes || address.port < 1 || address.port > 65535) {
    throw CommError("'" + printable(text.substr(0, 80)) + "' is not the address of a Vitrine run");
  }
  for (std::string host; in >> host;) address.hosts.push_back(host);
  return address;
}

void write_address(const std::string& path, const Address& address) {
  const std::string problem = write_private_file(path, address.str());
  if (problem.empty()) return;
  throw CommError({given(settings::kRendezvous, "file:" + path),
                   fmt::format(": cannot write it ({}); give a file in a folder that all processes share", problem)});
}

std::string read_address(const std::string& path, bool only_private, std::string& problem) {
  if (access(path.c_str(), F_OK) != 0) {
    problem = kNoAddressFile;
    return {};
  }
  std::string text = read_file(path, kLongestAddress, only_private, problem);
  if (problem == kNotRegular) {
    throw CommError({given(settings::kRendezvous, "file:" + path),
                     fmt::format(": {}; give a new file in a folder that all processes share", problem)});
  }
  return text;
}

Rendezvous parse_rendezvous(const std::string& text) {
  const auto bad = [&](const char* why) {
    return ConfigError({given(settings::kRendezvous, text),
                        fmt::format(": {}; use tcp://HOST:PORT of rank 0's machine, or file:PATH on a file system "
                                    "that all processes share",
                                    why)});
  };
  Rendezvous parsed;
  if (text.rfind("file:", 0) == 0) {
    parsed.address_file = text.substr(text.rfind("file://", 0) == 0 ? 7 : 5);
    if (parsed.address_file.empty()) throw bad("the path is empty");
    return parsed;
  }
  if (text.rfind("tcp://", 0) != 0) throw bad("unknown method");
  const size_t colon = text.rfind(':');
  if (colon < 6 || colon == 6) throw bad("host and port are missing");
  parsed.host = text.substr(6, colon - 6);
  if (parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']')
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  parsed.port = parse_number<int>(std::string_view(text).substr(colon + 1)).value_or(0);
  if (parsed.port < 1 || parsed.port > 65535) throw bad("the port is not a number from 1 to 65535");
  return parsed;
}

Rendezvous plan_rendezvous(const ProcessGroupOptions& options) {
  check_secret(options.secret, "the secret of the processes");
  if (options.rendezvous.empty()) return {};  // MPI carries the address and the key made for this run
  Rendezvous plan = parse_rendezvous(options.rendezvous);
  if (plan.host.empty()) return plan;
  if (options.one_machine) plan.host = "127.0.0.1";
  if (!options.secret.empty()) return plan;
  if (!names_loopback(plan.host)) {
    throw ConfigError(
        {given(settings::kRendezvous, options.rendezvous),
         ": a rendezvous over a network needs a secret, because anyone there can connect; set VITRINE_SECRET, or "
         "VITRINE_SECRET_FILE to a "
         "file of mode 0600, to the same for all of them, for example to the output of: openssl rand -hex 32"});
  }
  plan.address_file = private_address_path(plan.port);
  return plan;
}

}  // namespace process_group

std::string find_secret(const Environment& env) {
  constexpr const char* kText = "VITRINE_SECRET";
  constexpr const char* kFile = "VITRINE_SECRET_FILE";
  const auto get = [&](const char* name) {
    const char* const value = env(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string secret = get(kText);
  const std::string path = get(kFile);
  if (path.empty()) {
    process_group::check_secret(secret, kText);
    return secret;
  }
  if (!secret.empty()) throw ConfigError(fmt::format("{} and {} are both set; set one of them", kText, kFile));
  std::string problem;
  secret = process_group::read_private_file(path, 4096, problem);
  if (!problem.empty()) throw ConfigError(fmt::format("{}={}: {}", kFile, path, problem));
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = secret.find_first_not_of(kSpace);
  if (begin == std::string::npos) throw ConfigError(fmt::format("{}={}: the file is empty", kFile, path));
  secret = secret.substr(begin, secret.find_last_not_of(kSpace) + 1 - begin);
  process_group::check_secret(secret, kFile);
  return secret;
}

}  // namespace vitrine
