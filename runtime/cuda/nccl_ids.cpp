// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_ids.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/cuda/nccl_group.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"

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

std::string exchange_nccl_ids(const DeviceGroup& devices, int ranks_per_id) {
  const int world_size = devices.world_size(), first = devices.first_rank(), last = first + devices.size();
  const int count = nccl_id_count(world_size, ranks_per_id);
  std::string mine;
  for (int id = 0; id < count; ++id) {
    const int rank = first_rank_of_nccl_id(id, count, world_size);
    if (rank >= first && rank < last) mine += new_id();
  }
  if (devices.process_count() == 1) return mine;
  const auto join_parts = [](const std::vector<std::string>& parts) {
    std::string all;  // processes are in the order of their ranks, and so are the ids
    for (const std::string& part : parts) all += part;
    return std::vector<std::string>{all};
  };
  std::string ids = devices.process_group()->exchange("NCCL's unique ids", mine, join_parts);
  const size_t bytes = static_cast<size_t>(count) * sizeof(ncclUniqueId::internal);
  if (ids.size() != bytes)
    throw CommError(fmt::format("NCCL's unique ids: expected {} in {} bytes, got {} bytes", count, bytes, ids.size()));
  return ids;
}

}  // namespace vitrine::cuda
