// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <vitrine/runtime/view.h>

namespace vitrine {

/// Pageable memory, or memory that the CUDA driver has locked: GPUs copy from and to it asynchronously and faster.
enum class HostMemory { pageable, pinned };

/// Host memory that streams copy from and to, 4096-byte aligned and touched when made. Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Zero-filled. throws OutOfMemory; pinned: UnsupportedError without CUDA, CudaError.
  explicit HostBuffer(int64_t bytes, HostMemory kind = HostMemory::pageable);
  int64_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }
  /// The first shape.numel() elements as a view in host memory. throws ShapeError when they do not fit.
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
