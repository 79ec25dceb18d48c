// SPDX-License-Identifier: Apache-2.0
#include "kernels/libraries.h"

#include <fmt/format.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn_conv2d.h"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

/// Version of cuBLASLt, or why it cannot be loaded.
std::string cublaslt_version() {
  try {
    const size_t version = cublaslt().GetVersion();
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::vector<LibraryInfo> kernel_libraries() {
  std::vector<LibraryInfo> libraries;
  const std::optional<LibraryInfo> cudnn = cudnn_library();
  if (cudnn) libraries.push_back(*cudnn);
  libraries.push_back({"cuBLASLt", cublaslt_version(),
                       cudnn ? "matrix products on GPUs, and convolution where cuDNN has no plan"
                             : "convolution and matrix products on GPUs"});
  return libraries;
}

}  // namespace vitrine::cuda
