// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "runtime/cuda/nccl_library.h"
/// The call that depends on NCCL's version: CMake chooses nccl_join_several.cpp for NCCL 2.23 and newer,
/// nccl_join_one.cpp for older ones.
namespace vitrine::cuda {

/// Whether both the NCCL of the build and the one that is loaded let ranks join through several ids.
bool nccl_joins_through_several_ids();
/// Creates the communicator of `rank`. requires one id, or nccl_joins_through_several_ids()
ncclResult_t nccl_join(ncclComm_t& comm, int world_size, int rank, std::span<ncclUniqueId> ids, ncclConfig_t& config);

}  // namespace vitrine::cuda
