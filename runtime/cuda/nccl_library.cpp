// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_group.h"

namespace vitrine::cuda {

const Nccl& nccl() {
  VITRINE_OPEN_LIBRARY("NCCL", VITRINE_NCCL_SONAME, VITRINE_NCCL_FILE);
  static const Nccl functions{VITRINE_NCCL_FUNCTIONS(VITRINE_LIBRARY_FUNCTION, nccl)};
  return functions;
}

}  // namespace vitrine::cuda
