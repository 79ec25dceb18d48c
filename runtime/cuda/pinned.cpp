// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/pinned.h"

#include <fmt/format.h>

#include "runtime/cuda/check.h"
#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine::cuda {

void* allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  const DeviceScope scope(device_in_use());
  const cudaError_t code =
      cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(
        fmt::format("HostBuffer: cannot pin {} of host memory for GPUs; use smaller batches", format_bytes(bytes)),
        {.memory = MemoryShortage::Memory::host, .user = "HostBuffer", .needed_bytes = bytes});
  }
  VITRINE_CUDA_CHECK(code);
  return memory;
}

void free_pinned(void* memory) noexcept {
  avoid_unused_gpu();
  if (cudaFreeHost(memory) != cudaSuccess) cudaGetLastError();
}

}  // namespace vitrine::cuda
