// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace vitrine {

/// Cores and threads of one device.
struct CoreShare {
  std::vector<int> cores;  // of the compute threads
  int threads = 1;
  std::vector<int> helper_cores;  // of the copy and communication workers: `cores`, and those that no device uses
};

/// Cores in this process's affinity mask, ascending; at least one.
std::vector<int> available_cores();

/// CPU quota of this process's control groups (versions 1 and 2, and their parents) in cores; nothing without a quota.
///   root  prefix of all paths; tests put their own /proc and /sys/fs/cgroup there
std::optional<double> cpu_quota(const std::string& root = {});

/// Divides `available` among `devices` in contiguous runs that differ by at most one core, larger ones first. Each
/// device gets one thread for each of its cores. If there are fewer cores than threads, devices share cores in turn,
/// and `warnings` gains a line with the remedy.
///   quota               if below the number of cores, limits the threads (rounded up, at least one); the devices still
///                       get all cores
///   threads_per_device  empty, one value for all, or one each: the device gets that many threads, and as many cores
///   shared              `available` is this process's part of cores that it shares with others, so the warning does
///                       not blame the launcher
/// throws  ConfigError for a list of the wrong length or a value below 1; DeviceError if `available` is empty
std::vector<CoreShare> divide_cores(std::span<const int> available, int devices,
                                    std::span<const int> threads_per_device, std::vector<std::string>& warnings,
                                    bool shared = false, std::optional<double> quota = {});

}  // namespace vitrine
