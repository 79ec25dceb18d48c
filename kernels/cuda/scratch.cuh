// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/check.h"
#include "kernels/cuda/device.cuh"

namespace vitrine::cuda {

/// Memory for `count` objects at the start of the context's workspace.   throws  OutOfMemory
template <class T>
T* scratch(ExecContext& ctx, const char* operation, int64_t count = 1) {
  const int64_t needed = count * static_cast<int64_t>(sizeof(T));
  const int64_t reserved = check::workspace_bytes(ctx);
  if (reserved < needed) check::throw_small_workspace(ctx, reserved, operation, "", needed, needed);
  return static_cast<T*>(ctx.workspace().data);
}

}  // namespace vitrine::cuda
