// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_join.h"

namespace vitrine::cuda {

bool nccl_joins_through_several_ids() {
  int loaded = 0;
  return ncclGetVersion(&loaded) == ncclSuccess && loaded >= NCCL_VERSION(2, 23, 0);
}

ncclResult_t nccl_join(ncclComm_t& comm, int world_size, int rank, std::span<ncclUniqueId> ids, ncclConfig_t& config) {
  if (ids.size() == 1) return ncclCommInitRankConfig(&comm, world_size, ids[0], rank, &config);
  if (!nccl_joins_through_several_ids()) return ncclInvalidUsage;
  return ncclCommInitRankScalable(&comm, world_size, rank, static_cast<int>(ids.size()), ids.data(), &config);
}

}  // namespace vitrine::cuda
