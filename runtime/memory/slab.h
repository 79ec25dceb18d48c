// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// The memory behind a pool: one range of addresses whose first size() bytes are there to use.
class Slab {
 public:
  virtual ~Slab() = default;
  /// The address of byte 0; never changes while blocks are in use.
  virtual void* base() const = 0;
  virtual int64_t size_bytes() const = 0;
  /// Makes the first `bytes` bytes usable and touches them, so that no page fault comes later.
  /// throws OutOfMemory when the machine does not give them, UnsupportedError when this slab cannot grow.
  virtual void grow(int64_t bytes) = 0;
  /// False when growing moves base(), which is possible only while the pool is empty: a pool without a plan then takes its whole capacity at once.
  virtual bool grows_again() const { return true; }
};

}  // namespace vitrine
