// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_join.h"

namespace vitrine::cuda {

bool nccl_joins_through_several_ids() {
  int loaded = 0;
  return nccl().GetVersion(&loaded) == ncclSuccess && loaded >= NCCL_VERSION(2, 23, 0);
}

ncclResult_t nccl_join(ncclComm_t& comm, int world_size, int rank, std::span<ncclUniqueId> ids, ncclConfig_t& config) {
  if (ids.size() == 1) return nccl().CommInitRankConfig(&comm, world_size, ids[0], rank, &config);
  if (!nccl_joins_through_several_ids()) return ncclInvalidUsage;
  const auto init = VITRINE_FIND_FUNCTION(nccl().library, nccl, CommInitRankScalable);
  return init(&comm, world_size, rank, static_cast<int>(ids.size()), ids.data(), &config);
}

}  // namespace vitrine::cuda
