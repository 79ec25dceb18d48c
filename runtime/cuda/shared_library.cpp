// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::cuda {

SharedLibrary::SharedLibrary(const char* name, std::initializer_list<const char*> files) : name_(name) {
  for (const char* file : files) {
    library_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) return;
  }
  throw CudaError(fmt::format("{} cannot be loaded: {}; install {}, or put its folder on LD_LIBRARY_PATH", name,
                              dlerror(), *files.begin()));
}

void* SharedLibrary::function(const char* function) const {
  void* const found = dlsym(library_, function);
  if (found != nullptr) return found;
  throw CudaError(fmt::format(
      "{} has no function {}; install the version that this program was built with, or a newer one", name_, function));
}

}  // namespace vitrine::cuda
