// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

/// Libraries of NVIDIA's that are opened when they are first used: a machine without one of them runs what it can. A
/// list LIST(use, prefix) names the functions of one as use(prefix, Name)...; they are the members of a struct:
///     struct Cudnn { VITRINE_CUDNN_FUNCTIONS(VITRINE_LIBRARY_MEMBER, cudnn) };
namespace vitrine::cuda {

/// An open library, which is never closed.
class SharedLibrary {
 public:
  /// Opens the first of `files` that the loader finds. throws CudaError with the loader's reason and the remedy
  SharedLibrary(const char* name, std::initializer_list<const char*> files);
  /// throws CudaError with the remedy if the library has no such function
  void* function(const char* function) const;

 private:
  const char* name_;
  void* library_ = nullptr;
};

#define VITRINE_LIBRARY_MEMBER(prefix, name) decltype(&::prefix##name) name;
#ifdef VITRINE_STANDIN_DEVICE_HEADER
// The stand-ins are linked.
#define VITRINE_OPEN_LIBRARY(name, ...) static_cast<void>(name)
#define VITRINE_LIBRARY_FUNCTION(prefix, name) &::prefix##name,
#else
#define VITRINE_OPEN_LIBRARY(name, ...) static const SharedLibrary library(name, {__VA_ARGS__})
#define VITRINE_LIBRARY_FUNCTION(prefix, name) \
  reinterpret_cast<decltype(&::prefix##name)>(library.function(#prefix #name)),
#endif

}  // namespace vitrine::cuda
