// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <cudnn.h>

#include "runtime/cuda/shared_library.h"

namespace vitrine::cuda {

// The functions of cuDNN that we call, without their prefix.
#define VITRINE_CUDNN_FUNCTIONS(use, prefix)                                                                   \
  use(prefix, BackendCreateDescriptor) use(prefix, BackendDestroyDescriptor) use(prefix, BackendExecute)       \
      use(prefix, BackendFinalize) use(prefix, BackendGetAttribute) use(prefix, BackendSetAttribute)           \
          use(prefix, Create) use(prefix, Destroy) use(prefix, GetErrorString) use(prefix, GetLastErrorString) \
              use(prefix, GetVersion) use(prefix, SetStream)

struct Cudnn {
  VITRINE_CUDNN_FUNCTIONS(VITRINE_LIBRARY_MEMBER, cudnn)
};

/// cuDNN, loaded by the first call. throws CudaError with the loader's reason and the remedy
const Cudnn& cudnn();
/// Why cuDNN is not used: it cannot be loaded, or is turned off (GpuFeature::cudnn); empty if it is.
std::string why_no_cudnn();

}  // namespace vitrine::cuda
