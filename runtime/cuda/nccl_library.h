// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include "runtime/cuda/shared_library.h"

namespace vitrine::cuda {

// The functions of NCCL that we call, without their prefix.
#define VITRINE_NCCL_FUNCTIONS(use, prefix)                                                                          \
  use(prefix, AllGather) use(prefix, AllReduce) use(prefix, Broadcast) use(prefix, CommAbort) use(prefix, CommCount) \
      use(prefix, CommCuDevice) use(prefix, CommDestroy) use(prefix, CommFinalize) use(prefix, CommGetAsyncError)    \
          use(prefix, CommInitRankScalable) use(prefix, CommUserRank) use(prefix, GetErrorString)                    \
              use(prefix, GetLastError) use(prefix, GetUniqueId) use(prefix, GetVersion) use(prefix, GroupEnd)       \
                  use(prefix, GroupStart) use(prefix, Recv) use(prefix, Reduce) use(prefix, ReduceScatter)           \
                      use(prefix, Send)

struct Nccl {
  VITRINE_NCCL_FUNCTIONS(VITRINE_LIBRARY_MEMBER, nccl)
};

/// NCCL, loaded by the first call. throws CudaError with the loader's reason and the remedy
const Nccl& nccl();

}  // namespace vitrine::cuda
