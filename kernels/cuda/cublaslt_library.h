// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include "runtime/cuda/shared_library.h"

namespace vitrine::cuda {

// The functions of cuBLASLt that we call, without their prefix.
#define VITRINE_CUBLASLT_FUNCTIONS(use, prefix)                                                                       \
  use(prefix, Create) use(prefix, Destroy) use(prefix, GetStatusName) use(prefix, GetStatusString)                    \
      use(prefix, GetVersion) use(prefix, Matmul) use(prefix, MatmulAlgoCheck)                                        \
          use(prefix, MatmulAlgoConfigGetAttribute) use(prefix, MatmulAlgoGetHeuristic) use(prefix, MatmulDescCreate) \
              use(prefix, MatmulDescDestroy) use(prefix, MatmulDescSetAttribute) use(prefix, MatmulPreferenceCreate)  \
                  use(prefix, MatmulPreferenceDestroy) use(prefix, MatmulPreferenceSetAttribute)                      \
                      use(prefix, MatrixLayoutCreate) use(prefix, MatrixLayoutDestroy)

struct CublasLt {
  VITRINE_CUBLASLT_FUNCTIONS(VITRINE_LIBRARY_MEMBER, cublasLt)
};

/// cuBLASLt, loaded by the first call, because loading costs 70 ms and 150 MiB that runs on CPU devices do not need.
/// Never unloaded. throws CudaError with the loader's reason and the remedy.
const CublasLt& cublaslt();

}  // namespace vitrine::cuda
