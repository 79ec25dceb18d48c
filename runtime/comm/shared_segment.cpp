// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shared_segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/process_group/process_group.h"

namespace vitrine::comm {
namespace {

/// A file that exists in memory alone: the system frees it with the last process that has it open or mapped, however
/// that process ends.
class MemoryFile {
 public:
  explicit MemoryFile(int descriptor) : descriptor_(descriptor) {}
  ~MemoryFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  /// Tells it from every other file of the machine.
  std::string identity() const {
    struct stat status = {};
    fstat(descriptor_, &status);
    return fmt::format("{}:{}", status.st_dev, status.st_ino);
  }

 private:
  int descriptor_;
};

std::string error_text(const char* call, int error) { return fmt::format("{}: {}", call, std::strerror(error)); }

using Created = SharedSegment::Created;

Created map(int file, int64_t bytes) {
  void* const data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return {nullptr, error_text("mmap of shared memory", errno)};
  return {std::make_unique<SharedSegment>(data, bytes), ""};
}

Created reserve_and_map(const MemoryFile& file, int64_t bytes) {
  if (file.descriptor() < 0) return {nullptr, error_text("memfd_create", errno)};
  // Memory that is not reserved could be missing when it is first written, which would kill the process.
  const int error = posix_fallocate(file.descriptor(), 0, bytes);
  if (error != 0) return {nullptr, error_text(fmt::format("{} bytes of shared memory", bytes).c_str(), error)};
  return map(file.descriptor(), bytes);
}

Created open_and_map(const std::string& path, const std::string& identity, int64_t bytes) {
  const MemoryFile file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.descriptor() < 0) return {nullptr, error_text("rank 0's shared memory", errno)};
  // In another PID namespace the path leads to another process.
  if (file.identity() != identity) return {nullptr, "rank 0 is in another PID namespace"};
  return map(file.descriptor(), bytes);
}

/// The first refusal, with its rank.
std::vector<std::string> first_refusal(const std::vector<std::string>& refusals) {
  const auto first = std::ranges::find_if(refusals, [](const std::string& refusal) { return !refusal.empty(); });
  if (first == refusals.end()) return {""};
  return {fmt::format("rank {}: {}", first - refusals.begin(), *first)};
}

}  // namespace

SharedSegment::~SharedSegment() { munmap(data_, static_cast<size_t>(bytes_)); }

SharedSegment::Created SharedSegment::create(ProcessGroup& process_group, int64_t bytes) {
  if (process_group.local_size() != process_group.size()) return {nullptr, "the processes are on several machines"};
  const bool first = process_group.rank() == 0;
  const MemoryFile file(first ? memfd_create("vitrine", MFD_CLOEXEC) : -1);  // open until all have opened it
  Created mapped;
  if (first) mapped = reserve_and_map(file, bytes);
  const std::string path =
      process_group.broadcast("the path of shared memory", fmt::format("/proc/{}/fd/{}", getpid(), file.descriptor()));
  const std::string identity = process_group.broadcast("the identity of shared memory", file.identity());
  if (!first) mapped = open_and_map(path, identity, bytes);
  const std::string refusal = process_group.exchange("the mapping of shared memory", mapped.refusal, first_refusal);
  if (!refusal.empty()) mapped.segment.reset();
  mapped.refusal = refusal;
  return mapped;
}

}  // namespace vitrine::comm
