// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shared_segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/process_group/process_group.h"

namespace vitrine::comm {
namespace {

/// A name under which other processes of the machine open the memory, until it is removed.
class SharedName {
 public:
  SharedName() {
    std::random_device random;
    text_ = fmt::format("/vitrine-{:08x}{:08x}", random(), random());
  }
  ~SharedName() {
    if (used_) shm_unlink(text_.c_str());
  }
  SharedName(const SharedName&) = delete;
  SharedName& operator=(const SharedName&) = delete;

  const std::string& text() const { return text_; }
  void mark_used() { used_ = true; }

 private:
  std::string text_;
  bool used_ = false;
};

std::string error_text(const char* call, int error) { return fmt::format("{}: {}", call, std::strerror(error)); }

using Created = SharedSegment::Created;

Created map(int file, int64_t bytes) {
  void* const data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return {nullptr, error_text("mmap of shared memory", errno)};
  return {std::make_unique<SharedSegment>(data, bytes), ""};
}

Created make_and_map(SharedName& name, int64_t bytes) {
  const int file = shm_open(name.text().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return {nullptr, error_text("shm_open", errno)};
  name.mark_used();
  // Memory that is not reserved could be missing when it is first written, which would kill the process.
  const int error = posix_fallocate(file, 0, bytes);
  Created mapped = error != 0 ? Created{nullptr, error_text(fmt::format("{} bytes in /dev/shm", bytes).c_str(), error)}
                              : map(file, bytes);
  close(file);
  return mapped;
}

Created open_and_map(const std::string& name, int64_t bytes) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (file < 0) return {nullptr, error_text("shm_open of rank 0's memory", errno)};
  Created mapped = map(file, bytes);
  close(file);
  return mapped;
}

/// The first refusal, with its rank.
std::vector<std::string> first_refusal(const std::vector<std::string>& refusals) {
  const auto first =
      std::find_if(refusals.begin(), refusals.end(), [](const std::string& refusal) { return !refusal.empty(); });
  if (first == refusals.end()) return {""};
  return {fmt::format("rank {}: {}", first - refusals.begin(), *first)};
}

}  // namespace

SharedSegment::~SharedSegment() { munmap(data_, static_cast<size_t>(bytes_)); }

SharedSegment::Created SharedSegment::create(ProcessGroup& process_group, int64_t bytes) {
  if (process_group.local_size() != process_group.size()) return {nullptr, "the processes are on several machines"};
  SharedName name;  // rank 0's, removed when all have opened it
  const bool first = process_group.rank() == 0;
  Created mapped;
  if (first) mapped = make_and_map(name, bytes);
  const std::string of_rank_0 = process_group.broadcast("the name of shared memory", name.text());
  if (!first) mapped = open_and_map(of_rank_0, bytes);
  const std::string refusal = process_group.exchange("the mapping of shared memory", mapped.refusal, first_refusal);
  if (!refusal.empty()) mapped.segment.reset();
  mapped.refusal = refusal;
  return mapped;
}

}  // namespace vitrine::comm
