// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "runtime/memory/available.h"
#include "runtime/memory/slab.h"

namespace vitrine {

/// Slab of a CPU device: a reserved range of addresses, backed by huge pages if the system provides them, touched as it
/// grows. Slabs of different devices start at different offsets within a page, so that collectives do not access the
/// same cache sets.
class CpuSlab final : public Slab {
 public:
  /// available  returns the memory that the machine has left; grow() checks it, because the kernel would kill the
  /// process rather than refuse memory
  /// throws OutOfMemory if the address range cannot be reserved.
  CpuSlab(
      int ordinal, int64_t capacity_bytes,
      std::function<AvailableMemory()> available = [] { return available_memory(); });
  ~CpuSlab() override;
  CpuSlab(const CpuSlab&) = delete;
  CpuSlab& operator=(const CpuSlab&) = delete;

  void* base() const override { return base_; }
  int64_t size_bytes() const override { return size_; }
  void grow(int64_t bytes) override;

 private:
  int ordinal_;
  std::function<AvailableMemory()> available_;
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
  char* base_ = nullptr;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
};

}  // namespace vitrine
