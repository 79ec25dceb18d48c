// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_join.h"

namespace vitrine::cuda {

bool nccl_joins_through_several_ids() { return false; }

ncclResult_t nccl_join(ncclComm_t& comm, int world_size, int rank, std::span<ncclUniqueId> ids, ncclConfig_t& config) {
  if (ids.size() != 1) return ncclInvalidUsage;
  return nccl().CommInitRankConfig(&comm, world_size, ids[0], rank, &config);
}

}  // namespace vitrine::cuda
