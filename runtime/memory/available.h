// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// Host memory that this process can still allocate.
struct AvailableMemory {
  int64_t bytes = 0;
  std::string source;  // what limits: "/proc/meminfo", the file of the control group, or "RLIMIT_AS (ulimit -v)"
};

/// Returns the minimum of MemAvailable, of what RLIMIT_AS leaves of the address space, less 2 GiB (at most half) for
/// addresses without memory, and of what this process's control groups (versions 1 and 2, and their parents) leave
/// under their limits. A group's file cache counts as available. If /proc cannot be read, returns all memory of the
/// machine.
///   root  prefix of all paths; tests put their own /proc and /sys/fs/cgroup there
AvailableMemory available_memory(const std::string& root = {});

/// Least memory that stays outside the pools by default: on a GPU, libraries allocate after the pools have been opened
/// (CUDA's context, cuBLASLt, cuDNN, NCCL).
inline constexpr int64_t kCpuReserve = int64_t{256} << 20;
inline constexpr int64_t kGpuReserve = int64_t{3} << 29;

/// Returns the part of `available` bytes that pools may use: all but 5 %, and at least `reserve` (at most half), which
/// stay outside the pools.
int64_t less_reserve(int64_t available, int64_t reserve = kCpuReserve);
/// Call before data of this size is brought into host memory: Linux kills a process that takes more than there is.
///   what    takes them, "FILE: pixels"      remedy  ends the message
/// throws  OutOfMemory if less is available, with both sizes
void require_memory(int64_t bytes, const std::string& what, const char* remedy);

}  // namespace vitrine
