// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cudnn_library.h"

#include "runtime/error.h"
#include "runtime/gpu_features.h"

namespace vitrine::cuda {
namespace {

Cudnn load() {
  [[maybe_unused]] constexpr const char* kName = "cuDNN";
  void* const library = VITRINE_OPEN_LIBRARY(kName, VITRINE_CUDNN_SONAME, VITRINE_CUDNN_FILE);
  Cudnn functions{};
#define VITRINE_CUDNN_TAKE(name) functions.name = VITRINE_TAKE_FUNCTION(library, kName, cudnn, name);
  VITRINE_CUDNN_FUNCTIONS(VITRINE_CUDNN_TAKE)
#undef VITRINE_CUDNN_TAKE
  return functions;
}

}  // namespace

const Cudnn& cudnn() {
  static const Cudnn functions = load();
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
