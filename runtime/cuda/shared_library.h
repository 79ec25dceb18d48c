// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

/// Libraries of NVIDIA's that are opened when they are first used: a machine without one of them runs what it can. The
/// functions of one are the members of a struct, of their own types, from a list USE(name)... without their prefix.
namespace vitrine::cuda {

/// Opens the first of `files` that the loader finds; it is never closed. throws CudaError with the loader's reason and
/// the remedy
void* open_library(const char* name, std::initializer_list<const char*> files);
/// Null if the library has no such function.
void* find_function(void* library, const char* function);
/// throws CudaError with the remedy if the library has no such function
void* take_function(void* library, const char* name, const char* function);

#define VITRINE_LIBRARY_MEMBER(prefix, name) decltype(&::prefix##name) name;
#ifdef VITRINE_STANDIN_DEVICE_HEADER
// The stand-ins are linked.
#define VITRINE_OPEN_LIBRARY(name, ...) static_cast<void*>(nullptr)
#define VITRINE_TAKE_FUNCTION(library, library_name, prefix, function) (static_cast<void>(library), &::prefix##function)
#define VITRINE_FIND_FUNCTION(library, prefix, function) (static_cast<void>(library), &::prefix##function)
#else
#define VITRINE_OPEN_LIBRARY(name, ...) ::vitrine::cuda::open_library(name, {__VA_ARGS__})
#define VITRINE_TAKE_FUNCTION(library, library_name, prefix, function) \
  reinterpret_cast<decltype(&::prefix##function)>(                     \
      ::vitrine::cuda::take_function(library, library_name, #prefix #function))
#define VITRINE_FIND_FUNCTION(library, prefix, function) \
  reinterpret_cast<decltype(&::prefix##function)>(::vitrine::cuda::find_function(library, #prefix #function))
#endif

}  // namespace vitrine::cuda
