// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn_graph.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"

namespace vitrine::cuda {
namespace {

/// cuDNN opens the cuBLASLt of its CUDA by name, and ends the process where there is none. One that is open already is
/// found, wherever it lies. cuDNN for CUDA 12 has the same name as cuDNN for CUDA 13.
void open_cublaslt_of_cudnn() {
  const size_t major = cudnn().GetCudartVersion() / 1000;
  if (major == CUDART_VERSION / 1000) return static_cast<void>(cublaslt());
  try {
    SharedLibrary("cuBLASLt", {fmt::format("libcublasLt.so.{}", major).c_str()});
  } catch (const CudaError& error) {
    throw CudaError(fmt::format("cuDNN is the one for CUDA {}: {}", major, error.what()));
  }
}

}  // namespace

const Cudnn& cudnn() {
  VITRINE_OPEN_LIBRARY("cuDNN", VITRINE_CUDNN_SONAME, VITRINE_CUDNN_FILE);
  static const Cudnn functions{VITRINE_CUDNN_FUNCTIONS(VITRINE_LIBRARY_FUNCTION, cudnn)};
  return functions;
}

std::string why_no_cudnn() {
  if (std::string off = why_off(GpuFeature::cudnn); !off.empty()) return off;
  static const std::string not_loaded = [] {
    try {
      open_cublaslt_of_cudnn();
      return std::string();
    } catch (const CudaError& error) {
      return std::string(error.what());
    }
  }();
  return not_loaded;
}

}  // namespace vitrine::cuda
