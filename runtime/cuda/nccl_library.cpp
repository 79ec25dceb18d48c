// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_library.h"

namespace vitrine::cuda {
namespace {

Nccl load() {
  [[maybe_unused]] constexpr const char* kName = "NCCL";
  Nccl functions{};
  functions.library = VITRINE_OPEN_LIBRARY(kName, VITRINE_NCCL_SONAME, VITRINE_NCCL_FILE);
#define VITRINE_NCCL_TAKE(name) functions.name = VITRINE_TAKE_FUNCTION(functions.library, kName, nccl, name);
  VITRINE_NCCL_FUNCTIONS(VITRINE_NCCL_TAKE)
#undef VITRINE_NCCL_TAKE
  return functions;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl functions = load();
  return functions;
}

}  // namespace vitrine::cuda
