// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/memory/slab.h"

namespace vitrine {

/// Slab of a meta device: addresses that are never accessed. Where pointers have 64 bits, each meta device has
/// different ones.
class MetaSlab final : public Slab {
 public:
  explicit MetaSlab(int ordinal) : base_(static_cast<uintptr_t>((uint64_t(ordinal + 1) << 44) + kBase)) {}
  void* base() const override { return reinterpret_cast<void*>(base_); }  // NOLINT: not a pointer to anything
  int64_t size_bytes() const override { return size_; }
  void grow(int64_t bytes) override { size_ = bytes; }

 private:
  // Where pointers have 32 bits, addresses wrap around. None of elements of 2 bytes and more is null, which would be an
  // omitted argument.
  static constexpr uint64_t kBase = sizeof(void*) < sizeof(uint64_t) ? 1 : 0;
  uintptr_t base_;
  int64_t size_ = 0;
};

}  // namespace vitrine
