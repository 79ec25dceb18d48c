// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/affinity.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <sched.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

bool under_mpi() {
  const char* const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS"};
  return std::any_of(std::begin(names), std::end(names), [](const char* name) { return std::getenv(name) != nullptr; });
}

std::vector<int> wanted_threads(int devices, std::span<const int> threads_per_device) {
  const size_t count = threads_per_device.size();
  if (count != 1 && count != static_cast<size_t>(devices)) {
    throw ConfigError(fmt::format("threads per device: {} values for {} devices; give one value for all devices or one for each", count, devices));
  }
  std::vector<int> wanted(static_cast<size_t>(devices));
  for (size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = threads_per_device[count == 1 ? 0 : i];
    if (wanted[i] < 1) throw ConfigError(fmt::format("threads per device: device {} has {}; each device needs at least 1", i, wanted[i]));
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

std::vector<CoreShare> divide_cores(std::span<const int> available, int devices, std::span<const int> threads_per_device,
                                    std::vector<std::string>& warnings, bool shared) {
  if (devices < 1) return {};
  if (available.empty()) throw DeviceError("divide_cores: no core is available to this process");
  const std::vector<int> threads = threads_per_device.empty() ? equal_shares(available.size(), devices) : wanted_threads(devices, threads_per_device);
  int64_t total = 0;
  for (const int t : threads) total += t;
  if (total > static_cast<int64_t>(available.size())) {
    const char* const remedy = shared        ? "other processes have the rest of them: use fewer processes, devices or threads per device"
                               : under_mpi() ? "the launcher binds this process too narrowly: start it with mpirun --bind-to none"
                                             : "use fewer devices or fewer threads per device";
    warnings.push_back(fmt::format("{} CPU {} with {} threads share {} {} and slow each other down; {}", devices, devices == 1 ? "device" : "devices",
                                   total, available.size(), available.size() == 1 ? "core" : "cores", remedy));
  }
  std::vector<CoreShare> shares(static_cast<size_t>(devices));
  size_t next = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].threads = threads[i];
    const size_t count = std::min(static_cast<size_t>(threads[i]), available.size());
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
