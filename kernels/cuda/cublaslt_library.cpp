// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublaslt.h"

namespace vitrine::cuda {

const CublasLt& cublaslt() {
  VITRINE_OPEN_LIBRARY("cuBLASLt", VITRINE_CUBLASLT_SONAME, VITRINE_CUBLASLT_FILE);
  static const CublasLt functions{VITRINE_CUBLASLT_FUNCTIONS(VITRINE_LIBRARY_FUNCTION, cublasLt)};
  return functions;
}

}  // namespace vitrine::cuda
