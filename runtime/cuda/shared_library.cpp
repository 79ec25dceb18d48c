// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::cuda {

void* open_library(const char* name, std::initializer_list<const char*> files) {
  for (const char* file : files) {
    if (void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw CudaError(fmt::format("{} cannot be loaded: {}; install {}, or put its folder on LD_LIBRARY_PATH", name,
                              dlerror(), *files.begin()));
}

void* find_function(void* library, const char* function) { return dlsym(library, function); }

void* take_function(void* library, const char* name, const char* function) {
  void* const found = find_function(library, function);
  if (found != nullptr) return found;
  throw CudaError(
      fmt::format("{} has no function {}; install the version that this program was built with, or a newer "
                  "one",
                  name, function));
}

}  // namespace vitrine::cuda
