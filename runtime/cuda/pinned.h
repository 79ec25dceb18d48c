// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine::cuda {

/// Page-locked, page-aligned host memory that every GPU copies from and to asynchronously. throws OutOfMemory,
/// CudaError.
void* allocate_pinned(int64_t bytes);
void free_pinned(void* memory) noexcept;

}  // namespace vitrine::cuda
