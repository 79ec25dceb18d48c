// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/slab.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "runtime/error.h"
#include "runtime/settings.h"
#include "runtime/units.h"

namespace vitrine {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSkew = 5 * 4096 + 1024;  // a multiple of the pool's alignment, but not of a page
constexpr int kPopulateWrite = 23;          // MADV_POPULATE_WRITE, Linux 5.14

/// Maps the pages of [begin, begin + bytes). False if the system has no memory left.
bool touch(char* begin, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t page_begin = address / 4096 * 4096;
  const auto length = static_cast<size_t>(address + static_cast<uintptr_t>(bytes) - page_begin);
  if (madvise(reinterpret_cast<void*>(page_begin), length, kPopulateWrite) == 0) return true;
  if (errno == ENOMEM || errno == EFAULT) return false;
  for (int64_t i = 0; i < bytes; i += 4096) {
    auto* byte = reinterpret_cast<volatile char*>(begin + i);
    *byte = *byte;
  }
  return true;
}

}  // namespace

CpuSlab::CpuSlab(int ordinal, int64_t capacity_bytes, std::function<AvailableMemory()> available)
    : ordinal_(ordinal), available_(std::move(available)), capacity_(capacity_bytes) {
  const int64_t skew = ordinal * kSkew % kHugePage;
  mapping_bytes_ = (capacity_bytes + kHugePage - 1) / kHugePage * kHugePage + 2 * kHugePage;
  mapping_ = mmap(nullptr, static_cast<size_t>(mapping_bytes_), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    throw OutOfMemory(
        {fmt::format("cpu:{}: cannot reserve {} of address space ({}); raise its limit (ulimit -v), or lower ", ordinal,
                     format_bytes(mapping_bytes_), std::strerror(errno)),
         settings::kMemoryBytes},
        {.device = fmt::format("cpu:{}", ordinal), .needed_bytes = mapping_bytes_});
  }
  const auto start = (reinterpret_cast<uintptr_t>(mapping_) + kHugePage - 1) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(start), static_cast<size_t>(mapping_bytes_ - kHugePage), MADV_HUGEPAGE);
  base_ = reinterpret_cast<char*>(start) + skew;
}

CpuSlab::~CpuSlab() { munmap(mapping_, static_cast<size_t>(mapping_bytes_)); }

void CpuSlab::grow(int64_t bytes) {
  VITRINE_ASSERT(bytes <= capacity_, "a slab never grows past its capacity");
  if (bytes <= size_) return;
  const int64_t fresh = bytes - size_;
  if (const AvailableMemory available = available_(); fresh > available.bytes) {
    throw OutOfMemory(fmt::format("cpu:{}: its pool needs {} more, but the machine has {} available ({}); use a "
                                  "smaller batch, fewer devices or processes, "
                                  "or a machine with more memory",
                                  ordinal_, format_bytes(fresh), format_bytes(available.bytes), available.source),
                      {.memory = MemoryShortage::Memory::host,
                       .device = fmt::format("cpu:{}", ordinal_),
                       .needed_bytes = fresh,
                       .free_bytes = available.bytes});
  }
  const int64_t parts =
      std::clamp<int64_t>(fresh / (64 * kHugePage), 1, std::max(1U, std::thread::hardware_concurrency()));
  std::atomic<bool> enough{true};
  const auto touch_part = [&](int64_t part) {
    const int64_t begin = fresh * part / parts / kHugePage * kHugePage;
    const int64_t end = part + 1 == parts ? fresh : fresh * (part + 1) / parts / kHugePage * kHugePage;
    if (!touch(base_ + size_ + begin, end - begin)) enough = false;
  };
  std::vector<std::thread> threads;
  for (int64_t part = 1; part < parts; ++part) threads.emplace_back(touch_part, part);
  touch_part(0);
  for (auto& thread : threads) thread.join();
  if (!enough) {
    throw OutOfMemory(
        fmt::format(
            "the machine does not have {} of memory left for a device's pool; use a smaller batch or fewer devices",
            format_bytes(fresh)),
        {.memory = MemoryShortage::Memory::host, .device = fmt::format("cpu:{}", ordinal_), .needed_bytes = fresh});
  }
  size_ = bytes;
}

}  // namespace vitrine
