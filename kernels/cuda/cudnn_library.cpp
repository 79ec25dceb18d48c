// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cudnn_graph.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"

namespace vitrine::cuda {

const Cudnn& cudnn() {
  VITRINE_OPEN_LIBRARY("cuDNN", VITRINE_CUDNN_SONAME, VITRINE_CUDNN_FILE);
  static const Cudnn functions{VITRINE_CUDNN_FUNCTIONS(VITRINE_LIBRARY_FUNCTION, cudnn)};
  return functions;
}

std::string why_no_cudnn() {
  static const std::string not_loaded = [] {
    try {
      cudnn();
      return std::string();
    } catch (const CudaError& error) {
      return std::string(error.what());
    }
  }();
  return not_loaded.empty() ? why_off(GpuFeature::cudnn) : not_loaded;
}

}  // namespace vitrine::cuda
