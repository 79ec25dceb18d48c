// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/memory/slab.h"

namespace vitrine {

/// Slab of a GPU: one cudaMalloc of the planned size. Growing frees it and takes a larger one, so the pool must be
/// empty.
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
