// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// Host memory that this process may still take.
struct AvailableMemory {
  int64_t bytes = 0;
  std::string source;  // what limits it: "/proc/meminfo", or the file of the control group
};

/// The least of MemAvailable and of what the limits of this process's control groups (versions 1 and 2, with their parents) leave; a group's file
/// cache counts as available. Where /proc cannot be read, all memory of the machine.
///   root  precedes the paths: tests have a /proc and /sys/fs/cgroup of their own there
AvailableMemory available_memory(const std::string& root = {});

/// What pools may take of `available` bytes: all but 5 %, and at least 256 MiB (of very little, half) for all that lies outside the pools.
int64_t less_reserve(int64_t available);

}  // namespace vitrine
