// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <vitrine/runtime/view.h>

namespace vitrine {

/// Pageable memory, or memory locked by the CUDA driver, which GPUs copy from and to asynchronously and faster.
enum class HostMemory { pageable, pinned };

/// Host memory for copies from and to streams, aligned to 4096 bytes and touched when created. Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Fills the memory with zeros. throws OutOfMemory; for pinned memory UnsupportedError without CUDA, CudaError.
  explicit HostBuffer(int64_t bytes, HostMemory kind = HostMemory::pageable);
  int64_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }
  /// The first shape.numel() elements as a view in host memory. throws ShapeError if they do not fit.
  View view(const Shape& shape, DType dtype) const;

 private:
  struct Release {
    int64_t bytes;
    HostMemory kind;
    void operator()(void* p) const noexcept;
  };
  std::unique_ptr<void, Release> memory_;
};

}  // namespace vitrine
