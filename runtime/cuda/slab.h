// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/memory/slab.h"

namespace vitrine {

/// A GPU's slab: one cudaMalloc of the planned size, made by the first grow(). It cannot grow again: addresses must not change.
class CudaSlab final : public Slab {
 public:
  explicit CudaSlab(int device) : device_(device) {}
  ~CudaSlab() override;
  CudaSlab(const CudaSlab&) = delete;
  CudaSlab& operator=(const CudaSlab&) = delete;

  void* base() const override { return base_; }
  int64_t size_bytes() const override { return size_; }
  void grow(int64_t bytes) override;

 private:
  int device_;
  void* base_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace vitrine
