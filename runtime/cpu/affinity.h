// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace vitrine {

/// The cores that one device's workers run on and the threads of its team.
struct CoreShare {
  std::vector<int> cores;  // of the team
  int threads = 1;
  std::vector<int> helper_cores;  // of the copy and communication workers: the team's, and those that no device's team has
};

/// The cores of this process's affinity mask, ascending; at least one.
std::vector<int> available_cores();

/// How many cores' worth of time the control groups of this process (versions 1 and 2, with their parents) let it use; nothing without a quota.
///   root  precedes the paths: tests have a /proc and /sys/fs/cgroup of their own there
std::optional<double> cpu_quota(const std::string& root = {});

/// Divides `available` among `devices` in contiguous runs that differ by at most one core, larger first; each device gets a thread for each of its
/// cores.
///   quota               where it is less than the cores, devices get no more threads than it pays for (rounded up, one at least), on all of the
///   cores threads_per_device  empty, one value for all, or one each: a device then gets that many threads and as many cores of its own
/// When there are fewer cores than threads are wanted, devices share cores in turn and `warnings` gains a line with the remedy.
/// throws  ConfigError on a list of the wrong length or a value below 1; DeviceError when `available` is empty
///   shared  `available` is this process's part of what it has in common with others: a launcher that binds is not to blame then
std::vector<CoreShare> divide_cores(std::span<const int> available, int devices, std::span<const int> threads_per_device,
                                    std::vector<std::string>& warnings, bool shared = false, std::optional<double> quota = {});

}  // namespace vitrine
