// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublaslt_library.h"

namespace vitrine::cuda {
namespace {

CublasLt load() {
  [[maybe_unused]] constexpr const char* kName = "cuBLASLt";
  void* const library = VITRINE_OPEN_LIBRARY(kName, VITRINE_CUBLASLT_SONAME, VITRINE_CUBLASLT_FILE);
  CublasLt functions{};
#define VITRINE_CUBLASLT_TAKE(name) functions.name = VITRINE_TAKE_FUNCTION(library, kName, cublasLt, name);
  VITRINE_CUBLASLT_FUNCTIONS(VITRINE_CUBLASLT_TAKE)
#undef VITRINE_CUBLASLT_TAKE
  return functions;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt functions = load();
  return functions;
}

}  // namespace vitrine::cuda
