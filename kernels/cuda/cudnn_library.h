// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <cudnn.h>

#include "runtime/cuda/shared_library.h"

namespace vitrine::cuda {

// The functions of cuDNN that we call, without their prefix.
#define VITRINE_CUDNN_FUNCTIONS(use)                                                                  \
  use(BackendCreateDescriptor) use(BackendDestroyDescriptor) use(BackendExecute) use(BackendFinalize) \
      use(BackendGetAttribute) use(BackendSetAttribute) use(Create) use(Destroy) use(GetErrorString)  \
          use(GetLastErrorString) use(GetVersion) use(SetStream)

struct Cudnn {
#define VITRINE_CUDNN_MEMBER(name) VITRINE_LIBRARY_MEMBER(cudnn, name)
  VITRINE_CUDNN_FUNCTIONS(VITRINE_CUDNN_MEMBER)
#undef VITRINE_CUDNN_MEMBER
};

/// cuDNN, loaded by the first call. throws CudaError with the loader's reason and the remedy
const Cudnn& cudnn();
/// Why cuDNN is not used: it cannot be loaded, or is turned off (GpuFeature::cudnn); empty if it is.
std::string why_no_cudnn();

}  // namespace vitrine::cuda
