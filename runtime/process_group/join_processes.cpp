// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/join_processes.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/cpu/affinity.h"
#include "runtime/error.h"
#include "runtime/gpu_info.h"

namespace vitrine {
namespace {

/// Divides cores that several processes of this machine may use, and returns this process's part.
std::vector<int> share_cores(ProcessGroup& process_group, const std::vector<int>& cores) {
  // For each process, counts the processes with the same cores before it, and all of them.
  const auto number = [](const std::vector<std::string>& masks) {
    std::map<std::string, size_t> sharing;
    std::vector<std::string> places;
    for (const std::string& mask : masks) places.push_back(std::to_string(sharing[mask]++));
    for (size_t r = 0; r < masks.size(); ++r) places[r].append(" ").append(std::to_string(sharing[masks[r]]));
    return places;
  };
  size_t before = 0, sharing = 1;
  std::istringstream(process_group.exchange(
      "the available cores", fmt::format("{} {}", process_group.machine(), fmt::join(cores, ",")), number)) >>
      before >> sharing;
  if (cores.size() < sharing) return {cores[before % cores.size()]};
  return {cores.begin() + static_cast<std::ptrdiff_t>(before * cores.size() / sharing),
          cores.begin() + static_cast<std::ptrdiff_t>((before + 1) * cores.size() / sharing)};
}

/// throws UnsupportedError if two processes use one GPU.
void refuse_shared_gpus(ProcessGroup& process_group, const DeviceGroupOptions& options) {
  std::string mine;
  for (const GpuInfo& gpu : query_gpus(false).gpus) {
    const auto used = [&](const DeviceId& id) { return id.index == gpu.index; };
    if (std::ranges::any_of(options.devices, used)) mine += process_group.machine() + " " + gpu.pci_bus_id + "\n";
  }
  const std::string shared = process_group.exchange("the GPUs in use", mine, [](const std::vector<std::string>& all) {
    std::map<std::string, size_t> owners;
    for (size_t r = 0; r < all.size(); ++r) {
      std::istringstream lines(all[r]);
      for (std::string gpu; std::getline(lines, gpu);) {
        const auto [owner, fresh] = owners.emplace(gpu, r);
        if (fresh || owner->second == r) continue;
        return std::vector<std::string>{
            fmt::format("devices: ranks {} and {} both use the GPU {}; give each process its own GPUs (by default the "
                        "GPU with its local rank)",
                        owner->second, r, gpu.substr(gpu.rfind(' ') + 1))};
      }
    }
    return std::vector<std::string>(1);
  });
  if (!shared.empty()) throw UnsupportedError(shared);
}

/// throws ConfigError unless all processes have devices of one kind.
void require_one_kind(ProcessGroup& process_group, const std::string& kind) {
  const std::string problem =
      process_group.exchange("the kind of devices", kind, [](const std::vector<std::string>& kinds) {
        const auto other = std::ranges::find_if(kinds, [&](const std::string& of_rank) { return of_rank != kinds[0]; });
        if (other == kinds.end()) return std::vector<std::string>(1);
        return std::vector<std::string>{fmt::format(
            "devices: rank {} has {} devices, but rank 0 has {} devices; use only cpu or only cuda devices in a run",
            other - kinds.begin(), *other, kinds[0])};
      });
  if (!problem.empty()) throw ConfigError(problem);
}

}  // namespace

DeviceGroupOptions join_processes(DeviceGroupOptions options, std::shared_ptr<ProcessGroup> process_group) {
  if (process_group == nullptr) return options;
  ProcessGroupPlace place;
  std::vector<std::string> names;
  for (size_t i = 0; i < options.devices.size(); ++i) {
    const DeviceId id = options.devices[i];
    const bool shared = std::ranges::count(options.devices, id) > 1;
    names.push_back(shared && id.backend == Backend::cuda ? logical_name(id, i) : id.str());
  }
  const std::string kind = names.empty() ? std::string() : names[0].substr(0, names[0].find(':'));
  if (kind == "cpu") place.cores = share_cores(*process_group, available_cores());
  require_one_kind(*process_group, kind);
  place.process = process_group->rank();
  place.devices = process_group->register_devices(names);
  place.local_processes = process_group->local_size();
  if (kind == "cuda") refuse_shared_gpus(*process_group, options);
  options.place = std::move(place);
  options.process_group = std::move(process_group);
  return options;
}

}  // namespace vitrine
