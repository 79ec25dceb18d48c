// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include "runtime/cuda/shared_library.h"

namespace vitrine::cuda {

// The functions of NCCL that we call and every supported version has, without their prefix.
#define VITRINE_NCCL_FUNCTIONS(use)                                                                              \
  use(AllGather) use(AllReduce) use(Broadcast) use(CommAbort) use(CommCount) use(CommCuDevice) use(CommDestroy)  \
      use(CommFinalize) use(CommGetAsyncError) use(CommInitRankConfig) use(CommUserRank) use(GetErrorString)     \
          use(GetLastError) use(GetUniqueId) use(GetVersion) use(GroupEnd) use(GroupStart) use(Recv) use(Reduce) \
              use(ReduceScatter) use(Send)

struct Nccl {
#define VITRINE_NCCL_MEMBER(name) VITRINE_LIBRARY_MEMBER(nccl, name)
  VITRINE_NCCL_FUNCTIONS(VITRINE_NCCL_MEMBER)
#undef VITRINE_NCCL_MEMBER
  void* library;  // in which newer functions are found
};

/// NCCL, loaded by the first call. throws CudaError with the loader's reason and the remedy
const Nccl& nccl();

}  // namespace vitrine::cuda
