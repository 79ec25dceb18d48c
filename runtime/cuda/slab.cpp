// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/slab.h"

#include <fmt/format.h>

#include "runtime/cuda/check.h"
#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine {

CudaSlab::~CudaSlab() {
  if (base_ == nullptr) return;
  cuda::avoid_unused_gpu(device_);
  if (cudaFree(base_) != cudaSuccess) cudaGetLastError();
}

void CudaSlab::grow(int64_t bytes) {
  if (bytes <= size_) return;
  const cuda::DeviceScope scope(device_);
  // An earlier engine may have taken less; its queued work is done when cudaFree returns.
  VITRINE_CUDA_CHECK(cudaFree(base_));
  base_ = nullptr;
  size_ = 0;
  const cudaError_t code = cudaMalloc(&base_, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    VITRINE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    const MemoryShortage shortage{.device = fmt::format("cuda:{}", device_),
                                  .needed_bytes = bytes,
                                  .capacity_bytes = static_cast<int64_t>(total_bytes),
                                  .free_bytes = static_cast<int64_t>(free_bytes)};
    throw OutOfMemory(
        fmt::format("{}: the pool needs {}, but the GPU has {} free of {}", shortage.device, format_bytes(bytes),
                    format_bytes(shortage.free_bytes), format_bytes(shortage.capacity_bytes)),
        shortage);
  }
  VITRINE_CUDA_CHECK(code);
  size_ = bytes;
}

}  // namespace vitrine
