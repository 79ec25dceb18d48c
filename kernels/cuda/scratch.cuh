// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kernels/cuda/device.cuh"
#include "runtime/error.h"

namespace vitrine::cuda {

/// Memory for `count` objects at the start of the context's workspace.   throws  OutOfMemory with the bytes needed
template <class T>
T* scratch(ExecContext& ctx, const char* operation, int64_t count = 1) {
  const int64_t needed = count * static_cast<int64_t>(sizeof(T));
  const View workspace = ctx.workspace();
  const int64_t there = workspace ? workspace.bytes() : 0;
  if (there < needed) {
    throw OutOfMemory(std::string(operation) + ": needs a workspace of " + std::to_string(needed) + " bytes on " + ctx.device().str() +
                      ", the context has " + std::to_string(there) + "; call reserve_workspace with at least that many");
  }
  return static_cast<T*>(workspace.data);
}

}  // namespace vitrine::cuda
