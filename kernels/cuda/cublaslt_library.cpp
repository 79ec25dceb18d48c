// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublaslt_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

#ifdef VITRINE_STANDIN_DEVICE_HEADER
CublasLt load() {
  CublasLt functions{};
#define VITRINE_CUBLASLT_TAKE(name) functions.name = &::cublasLt##name;
  VITRINE_CUBLASLT_FUNCTIONS(VITRINE_CUBLASLT_TAKE)
#undef VITRINE_CUBLASLT_TAKE
  return functions;
}
#else
/// Opens the library that the loader finds, otherwise the one that this program was built with.
void* open_library() {
  for (const char* name : {VITRINE_CUBLASLT_SONAME, VITRINE_CUBLASLT_FILE}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw CudaError(fmt::format("cuBLASLt cannot be loaded: {}; install {}, or put its folder on LD_LIBRARY_PATH",
                              dlerror(), VITRINE_CUBLASLT_SONAME));
}

CublasLt load() {
  void* const library = open_library();
  CublasLt functions{};
  const auto take = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr)
      throw CudaError(
          fmt::format("cuBLASLt has no function {}; install {} of the toolkit that this program was built with", name,
                      VITRINE_CUBLASLT_SONAME));
  };
#define VITRINE_CUBLASLT_TAKE(name) take(functions.name, "cublasLt" #name);
  VITRINE_CUBLASLT_FUNCTIONS(VITRINE_CUBLASLT_TAKE)
#undef VITRINE_CUBLASLT_TAKE
  return functions;
}
#endif

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt functions = load();
  return functions;
}

}  // namespace vitrine::cuda
