// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/memory/slab.h"

namespace vitrine {

/// A GPU's slab: one cudaMalloc of the planned size. Growing gives it back and takes a larger one, so it is for empty pools.
class CudaSlab final : public Slab {
 public:
  explicit CudaSlab(int device) : device_(device) {}
  ~CudaSlab() override;
  CudaSlab(const CudaSlab&) = delete;
  CudaSlab& operator=(const CudaSlab&) = delete;

  void* base() const override { return base_; }
  int64_t size_bytes() const override { return size_; }
  void grow(int64_t bytes) override;
  bool grows_again() const override { return false; }

 private:
  int device_;
  void* base_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace vitrine
