// SPDX-License-Identifier: Apache-2.0
#include "kernels/libraries.h"

#include <Eigen/Core>
#include <fmt/format.h>

#ifdef VITRINE_HAVE_ONEDNN
#include <dnnl.hpp>
#endif
#ifdef VITRINE_HAVE_CUDA
#include <cublasLt.h>
#endif
#ifdef VITRINE_HAVE_CUDNN
#include <cudnn.h>
#endif

namespace vitrine {

std::vector<LibraryInfo> kernel_libraries() {
  std::vector<LibraryInfo> libraries;
#ifdef VITRINE_HAVE_ONEDNN
  const dnnl_version_t* onednn = dnnl_version();
  libraries.push_back({"oneDNN", fmt::format("{}.{}.{}", onednn->major, onednn->minor, onednn->patch), "convolution and matrix products on the CPU"});
  const char* eigen_use = "elementwise mathematics";
#else
  const char* eigen_use = "convolution, matrix products and elementwise mathematics";
#endif
  libraries.push_back({"Eigen", fmt::format("{}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION), eigen_use});
#ifdef VITRINE_HAVE_CUDA
  const size_t cublaslt = cublasLtGetVersion();
  const char* cublaslt_use = "convolution and matrix products on GPUs";
#ifdef VITRINE_HAVE_CUDNN
  const size_t cudnn = cudnnGetVersion();
  libraries.push_back({"cuDNN", fmt::format("{}.{}.{}", cudnn / 10000, cudnn / 100 % 100, cudnn % 100), "convolution on GPUs"});
  cublaslt_use = "matrix products on GPUs, and convolution where cuDNN has no plan";
#endif
  libraries.push_back({"cuBLASLt", fmt::format("{}.{}.{}", cublaslt / 10000, cublaslt / 100 % 100, cublaslt % 100), cublaslt_use});
#endif
  return libraries;
}

}  // namespace vitrine
