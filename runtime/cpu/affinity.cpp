// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/affinity.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <sched.h>

#include "runtime/control_groups.h"
#include "runtime/error.h"
#include "runtime/mpi_launchers.h"
#include "runtime/settings.h"

namespace vitrine {
namespace {

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

bool under_mpi() {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  return is_set("PMIX_RANK") || std::ranges::any_of(kMpiLaunchers, is_set, &MpiLauncher::size);
}

std::vector<int> wanted_threads(int devices, std::span<const int> threads_per_device) {
  const size_t count = threads_per_device.size();
  if (count != 1 && count != static_cast<size_t>(devices)) {
    throw ConfigError(
        {settings::kThreadsPerDevice,
         fmt::format(": {} values for {} devices; give one value for all devices or one for each", count, devices)});
  }
  std::vector<int> wanted(static_cast<size_t>(devices));
  for (size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = threads_per_device[count == 1 ? 0 : i];
    if (wanted[i] < 1)
      throw ConfigError(
          {settings::kThreadsPerDevice, fmt::format(": device {} has {}; each device needs at least 1", i, wanted[i])});
  }
  return wanted;
}

std::vector<int> equal_shares(size_t cores, int devices) {
  const auto n = static_cast<size_t>(devices);
  std::vector<int> shares(n);
  for (size_t i = 0; i < n; ++i) shares[i] = static_cast<int>(std::max<size_t>(1, cores / n + (i < cores % n ? 1 : 0)));
  return shares;
}

}  // namespace

std::vector<int> available_cores() {
  // The kernel refuses a set that is smaller than its own.
  for (int limit = CPU_SETSIZE; limit <= (1 << 20); limit *= 2) {
    const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(static_cast<size_t>(limit)));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(limit));
    if (!set) break;
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(0, bytes, set.get()) != 0) continue;
    std::vector<int> cores;
    for (int core = 0; core < limit; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), bytes, set.get())) cores.push_back(core);
    }
    if (!cores.empty()) return cores;
  }
  std::vector<int> cores(std::max(1u, std::thread::hardware_concurrency()));
  for (size_t i = 0; i < cores.size(); ++i) cores[i] = static_cast<int>(i);
  return cores;
}

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  visit_control_groups(root, "cpu", [&](const std::string& folder, int version) {
    double quota = 0, period = 0;
    if (version == 2) {
      std::ifstream file(folder + "/cpu.max");
      if (!(file >> quota >> period)) return;  // fails for "max 100000" too
    } else {
      std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
      if (!(quota_file >> quota) || !(period_file >> period)) return;  // a quota of -1 means none
    }
    if (quota > 0 && period > 0) least = std::min(least.value_or(quota / period), quota / period);
  });
  return least;
}

std::vector<CoreShare> divide_cores(std::span<const int> available, int devices,
                                    std::span<const int> threads_per_device, std::vector<std::string>& warnings,
                                    bool shared, std::optional<double> quota) {
  if (devices < 1) return {};
  if (available.empty()) throw DeviceError("divide_cores: no core is available to this process");
  // Number of cores that the quota allows.
  const size_t paid =
      quota ? std::clamp(static_cast<size_t>(std::ceil(*quota)), size_t{1}, available.size()) : available.size();
  const std::vector<int> threads =
      threads_per_device.empty() ? equal_shares(paid, devices) : wanted_threads(devices, threads_per_device);
  int64_t total = 0;
  for (const int t : threads) total += t;
  if (total > static_cast<int64_t>(paid)) {
    const char* const remedy =
        paid < available.size()
            ? "the control group's CPU quota allows no more: raise it, or use fewer devices or threads per device"
        : shared      ? "other processes use the other cores: use fewer processes, devices or threads per device"
        : under_mpi() ? "the launcher binds this process too narrowly: start it with mpirun --bind-to none"
                      : "use fewer devices or fewer threads per device";
    warnings.push_back(fmt::format("{} CPU {} with {} threads share {} {} and slow each other down; {}", devices,
                                   devices == 1 ? "device" : "devices", total, paid, paid == 1 ? "core" : "cores",
                                   remedy));
  }
  std::vector<CoreShare> shares(static_cast<size_t>(devices));
  size_t next = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].threads = threads[i];
    // Under a quota all cores are equal: unused ones would idle while other groups may occupy the first ones. So
    // devices get all cores.
    const size_t own = paid < available.size() && threads_per_device.empty()
                           ? (available.size() * (i + 1)) / shares.size() - (available.size() * i) / shares.size()
                           : static_cast<size_t>(threads[i]);
    const size_t count = std::clamp(own, size_t{1}, available.size());
    for (size_t k = 0; k < count; ++k) shares[i].cores.push_back(available[next++ % available.size()]);
  }
  const std::span<const int> spare = available.subspan(std::min(next, available.size()));
  for (CoreShare& share : shares) {
    share.helper_cores = share.cores;
    share.helper_cores.insert(share.helper_cores.end(), spare.begin(), spare.end());
  }
  return shares;
}

}  // namespace vitrine
