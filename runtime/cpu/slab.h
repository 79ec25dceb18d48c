// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/memory/slab.h"

namespace vitrine {

/// A CPU device's slab: a reserved range of addresses, backed by huge pages where the system gives them, touched as it grows. Slabs of
/// different devices start at different offsets within a page, so that collectives do not walk equal cache sets.
class CpuSlab final : public Slab {
 public:
  /// throws OutOfMemory when the address range cannot be reserved.
  CpuSlab(int ordinal, int64_t capacity_bytes);
  ~CpuSlab() override;
  CpuSlab(const CpuSlab&) = delete;
  CpuSlab& operator=(const CpuSlab&) = delete;

  void* base() const override { return base_; }
  int64_t size_bytes() const override { return size_; }
  void grow(int64_t bytes) override;

 private:
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
  char* base_ = nullptr;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
};

}  // namespace vitrine
