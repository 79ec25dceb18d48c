// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>

#include <sys/resource.h>
#include <unistd.h>

namespace vitrine::test {

/// False under sanitizers, whose own memory exceeds any limit.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMemoryCanBeLimited = false;
#else
inline constexpr bool kMemoryCanBeLimited = true;
#endif

/// Runs `action` with a limit on address space, `bytes` above what is in use: allocations beyond it throw
/// std::bad_alloc.
inline void with_memory(int64_t bytes, const std::function<void()>& action) {
  std::ifstream status("/proc/self/statm");
  int64_t pages = 0;
  status >> pages;
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit tight{static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + bytes), before.rlim_max};
  setrlimit(RLIMIT_AS, &tight);
  action();
  setrlimit(RLIMIT_AS, &before);
}

}  // namespace vitrine::test
