// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include "runtime/cuda/shared_library.h"

namespace vitrine::cuda {

// The functions of cuBLASLt that we call, without their prefix.
#define VITRINE_CUBLASLT_FUNCTIONS(use)                                                                             \
  use(Create) use(Destroy) use(GetStatusName) use(GetStatusString) use(GetVersion) use(Matmul) use(MatmulAlgoCheck) \
      use(MatmulAlgoConfigGetAttribute) use(MatmulAlgoGetHeuristic) use(MatmulDescCreate) use(MatmulDescDestroy)    \
          use(MatmulDescSetAttribute) use(MatmulPreferenceCreate) use(MatmulPreferenceDestroy)                      \
              use(MatmulPreferenceSetAttribute) use(MatrixLayoutCreate) use(MatrixLayoutDestroy)

struct CublasLt {
#define VITRINE_CUBLASLT_MEMBER(name) VITRINE_LIBRARY_MEMBER(cublasLt, name)
  VITRINE_CUBLASLT_FUNCTIONS(VITRINE_CUBLASLT_MEMBER)
#undef VITRINE_CUBLASLT_MEMBER
};

/// cuBLASLt, loaded by the first call, because loading costs 70 ms and 150 MiB that runs on CPU devices do not need.
/// Never unloaded. throws CudaError with the loader's reason and the remedy.
const CublasLt& cublaslt();

}  // namespace vitrine::cuda
