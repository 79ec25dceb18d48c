// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_ids.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/comm/communicator.h"
#include "runtime/cuda/nccl_group.h"
#include "runtime/cuda/nccl_join.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"
#include "runtime/text.h"

namespace vitrine::cuda {
namespace {

std::string new_id() {
  ncclUniqueId id{};
  VITRINE_NCCL_CHECK(nullptr, nccl().GetUniqueId(&id));
  return {id.internal, sizeof id.internal};
}

}  // namespace

int nccl_id_count(int world_size, int ranks_per_id) { return (world_size - 1) / ranks_per_id + 1; }

int first_rank_of_nccl_id(int id, int count, int world_size) {
  return id * (world_size / count) + std::min(id, world_size % count);
}

std::string exchange_nccl_ids(const DeviceGroup& devices) {
  const int world_size = devices.world_size(), first = devices.first_rank(), last = first + devices.size();
  const auto new_ids_of = [&](int begin, int count) {
    std::string mine;
    for (int id = begin; id < count; ++id) {
      const int rank = first_rank_of_nccl_id(id, count, world_size);
      if (rank >= first && rank < last) mine += new_id();
    }
    return mine;
  };
  const int ranks_per_id = devices.options().nccl_ranks_per_id;
  if (ranks_per_id < 1)
    throw ConfigError(fmt::format("DeviceGroupOptions::nccl_ranks_per_id is {}; expected at least 1", ranks_per_id));
  int count = nccl_joins_through_several_ids() ? nccl_id_count(world_size, ranks_per_id) : 1;
  if (devices.process_count() == 1) return new_ids_of(0, count);
  ProcessGroup& process_group = *devices.process_group();
  // The first id comes with their number, so that a group with one id needs one exchange.
  constexpr size_t kIdBytes = sizeof(ncclUniqueId::internal);
  const bool leads = process_group.rank() == 0;
  const std::string announced =
      process_group.broadcast("NCCL's unique id", leads ? new_id() + std::to_string(count) : std::string());
  std::string ids = announced.substr(0, kIdBytes);
  count = announced.size() > kIdBytes ? parse_number<int>(announced.substr(kIdBytes)).value_or(0) : 0;
  if (count < 1 || count > world_size)
    throw CommError(fmt::format("NCCL's unique id: rank 0's answer has {} bytes and {} ids", announced.size(), count));
  if (count == 1) return ids;
  if (!nccl_joins_through_several_ids()) {
    throw CommError(
        fmt::format("NCCL {}: rank 0 lets {} ranks join through {} unique ids, which needs NCCL 2.23; use one version "
                    "in all processes",
                    nccl_version(), world_size, count));
  }
  ids += process_group.exchange("NCCL's other unique ids", new_ids_of(1, count),
                                [&](const std::vector<std::string>& parts) {
                                  std::string all;  // processes are in the order of their ranks, and so are the ids
                                  for (const std::string& part : parts) all += part;
                                  return std::vector<std::string>{all};
                                });
  if (ids.size() != static_cast<size_t>(count) * kIdBytes) {
    throw CommError(
        fmt::format("NCCL's unique ids: expected {} of {} bytes, got {} bytes", count, kIdBytes, ids.size()));
  }
  return ids;
}

}  // namespace vitrine::cuda
