// SPDX-License-Identifier: Apache-2.0
#include "kernels/libraries.h"

#include <fmt/format.h>

#ifdef VITRINE_HAVE_CUDNN
#include <cudnn.h>
#endif
#include "kernels/cuda/cublaslt_library.h"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

std::string version_text(size_t version) { return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100); }

/// That of the library, or why it cannot be loaded.
std::string cublaslt_version() {
  try {
    return version_text(cublaslt().GetVersion());
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::vector<LibraryInfo> kernel_libraries() {
  std::vector<LibraryInfo> libraries;
  const char* cublaslt_use = "convolution and matrix products on GPUs";
#ifdef VITRINE_HAVE_CUDNN
  libraries.push_back({"cuDNN", version_text(cudnnGetVersion()), "convolution on GPUs"});
  cublaslt_use = "matrix products on GPUs, and convolution where cuDNN has no plan";
#endif
  libraries.push_back({"cuBLASLt", cublaslt_version(), cublaslt_use});
  return libraries;
}

}  // namespace vitrine::cuda
