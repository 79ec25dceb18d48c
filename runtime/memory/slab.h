// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// Memory of a pool: one range of addresses; the first size_bytes() bytes are usable.
class Slab {
 public:
  virtual ~Slab() = default;
  /// Address of byte 0. Constant while blocks are in use.
  virtual void* base() const = 0;
  virtual int64_t size_bytes() const = 0;
  /// Makes the first `bytes` bytes usable and touches them, so that later accesses cause no page fault.
  /// throws OutOfMemory if the machine does not have them, UnsupportedError if this slab cannot grow.
  virtual void grow(int64_t bytes) = 0;
  /// False if growing changes base(), which requires an empty pool: a pool without a plan then takes its whole capacity
  /// at once.
  virtual bool grows_again() const { return true; }
};

}  // namespace vitrine
