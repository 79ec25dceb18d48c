// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// Host memory that this process can still allocate.
struct AvailableMemory {
  int64_t bytes = 0;
  std::string source;  // the limiting source: "/proc/meminfo", or the file of the control group
};

/// Returns the minimum of MemAvailable and of what this process's control groups (versions 1 and 2, and their parents) leave under their limits. A
/// group's file cache counts as available. If /proc cannot be read, returns all memory of the machine.
///   root  prefix of all paths; tests put their own /proc and /sys/fs/cgroup there
AvailableMemory available_memory(const std::string& root = {});

/// Returns the part of `available` bytes that pools may use: all but 5 %, and at least 256 MiB (at most half) for memory outside the pools.
int64_t less_reserve(int64_t available);

}  // namespace vitrine
