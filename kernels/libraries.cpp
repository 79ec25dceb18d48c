// SPDX-License-Identifier: Apache-2.0
#include "kernels/libraries.h"

#include <Eigen/Core>
#include <fmt/format.h>

#ifdef VITRINE_HAVE_ONEDNN
#include <dnnl.hpp>
#endif

namespace vitrine {

#ifdef VITRINE_HAVE_CUDA
namespace cuda {
std::vector<LibraryInfo> kernel_libraries();  // in cuda/libraries.cpp
}
#endif

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
  for (const LibraryInfo& library : cuda::kernel_libraries()) libraries.push_back(library);
#endif
  return libraries;
}

}  // namespace vitrine
