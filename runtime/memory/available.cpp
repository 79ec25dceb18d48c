// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/available.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/control_groups.h"
#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine {
namespace {

/// Reads a file that contains only a number. Returns nothing for "max" or if there is no such file.
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// Reads the number after `key` at the beginning of a line.
std::optional<int64_t> read_field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t number = 0;
    if (words >> name && name == key && words >> number) return number;
  }
  return std::nullopt;
}

/// File names of one version of control groups.
struct Files {
  const char* limit;
  const char* usage;
  const char* cache;  // key in memory.stat of the file cache that can be dropped immediately
};
constexpr Files kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Files kVersion2 = {"memory.max", "memory.current", "inactive_file"};

void look_at_group(const std::string& folder, const Files& files, AvailableMemory& available) {
  const std::optional<int64_t> limit = read_number(folder + "/" + files.limit),
                               usage = read_number(folder + "/" + files.usage);
  if (!limit || !usage) return;
  const int64_t cache = read_field(folder + "/memory.stat", files.cache).value_or(0);
  const int64_t left = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - cache));
  if (left < available.bytes) available = {left, folder + "/" + files.limit};
}

/// Addresses, at most, that stacks and heaps of threads and code of libraries take beyond their memory. Without them
/// oneDNN 2.6 ends the process with a segmentation fault.
constexpr int64_t kAddresses = int64_t{2} << 30;

/// What RLIMIT_AS leaves of this process's address space, less kAddresses or half of it.
void look_at_process(const std::string& root, AvailableMemory& available) {
  constexpr std::string_view kLimit = "Max address space";
  std::ifstream file(root + "/proc/self/limits");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kLimit)) continue;
    std::istringstream numbers(line.substr(kLimit.size()));
    int64_t limit = 0;
    if (!(numbers >> limit)) return;  // unlimited
    const int64_t used = read_field(root + "/proc/self/status", "VmSize:").value_or(0) * 1024;
    const int64_t unused = std::max<int64_t>(0, limit - used), left = unused - std::min(unused / 2, kAddresses);
    if (left < available.bytes) available = {left, "RLIMIT_AS (ulimit -v)"};
    return;
  }
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  AvailableMemory available;
  if (const auto kib = read_field(meminfo, "MemAvailable:")) {
    available = {*kib * 1024, meminfo};
  } else {
    available = {static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGE_SIZE)),
                 "the machine"};
  }
  look_at_process(root, available);
  visit_control_groups(root, "memory", [&](const std::string& folder, int version) {
    look_at_group(folder, version == 2 ? kVersion2 : kVersion1, available);
  });
  return available;
}

int64_t less_reserve(int64_t available, int64_t reserve) {
  return available - std::min(available / 2, std::max(reserve, available / 20));
}

void require_memory(int64_t bytes, const std::string& what, const char* remedy) {
  const AvailableMemory available = available_memory();
  if (bytes <= less_reserve(available.bytes)) return;
  throw OutOfMemory(fmt::format("{} take {} of host memory, but only {} are available ({}); {}", what,
                                format_bytes(bytes), format_bytes(less_reserve(available.bytes)), available.source,
                                remedy));
}

}  // namespace vitrine
