// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/view.h"

namespace vitrine {

/// Host memory that streams copy from and to, 4096-byte aligned and touched when made. Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Zero-filled. throws OutOfMemory.
  explicit HostBuffer(int64_t bytes);
  int64_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }
  /// The first shape.numel() elements as a view in host memory. throws ShapeError when they do not fit.
  View view(const Shape& shape, DType dtype) const;

 private:
  struct Release {
    int64_t bytes;
    void operator()(void* p) const noexcept;
  };
  std::unique_ptr<void, Release> memory_;
};

}  // namespace vitrine
