// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/slab.h"

#include <fmt/format.h>

#include "runtime/cuda/check.h"
#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine {

CudaSlab::~CudaSlab() { cudaFree(base_); }

void CudaSlab::grow(int64_t bytes) {
  if (bytes <= size_) return;
  if (base_ != nullptr) {
    throw UnsupportedError(fmt::format("cuda:{}: the slab has {} and cannot grow to {}; reserve what a plan asks for before the first allocation",
                                       device_, format_bytes(size_), format_bytes(bytes)));
  }
  const cuda::DeviceScope scope(device_);
  const cudaError_t code = cudaMalloc(&base_, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    VITRINE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw OutOfMemory(fmt::format("cuda:{}: the pool asks for {}, but the GPU has {} free of {}", device_, format_bytes(bytes),
                                  format_bytes(static_cast<int64_t>(free_bytes)), format_bytes(static_cast<int64_t>(total_bytes))));
  }
  VITRINE_CUDA_CHECK(code);
  size_ = bytes;
}

}  // namespace vitrine
