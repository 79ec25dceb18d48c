// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/check.h"
#include "kernels/cuda/device.cuh"

namespace vitrine::cuda {

/// Memory for `count` objects at the start of the context's workspace.   throws  OutOfMemory
template <class T>
T* scratch(ExecContext& ctx, const char* operation, int64_t count = 1) {
  const int64_t needed = count * static_cast<int64_t>(sizeof(T));
  const View workspace = ctx.workspace();
  if ((workspace ? workspace.bytes() : 0) < needed) check::throw_small_workspace(ctx, operation, "", needed, needed);
  return static_cast<T*>(workspace.data);
}

}  // namespace vitrine::cuda
