// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "runtime/view.h"

namespace vitrine::cpu {

/// Hands out pieces of a workspace.
class Arena {
 public:
  static constexpr int64_t kAlignment = 256;
  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  explicit Arena(const View& workspace);
  /// True when pieces of these sizes fit into the remaining memory.
  bool fits(std::initializer_list<int64_t> pieces) const;
  /// Returns nullptr for 0 bytes.   requires  the piece fits
  void* take(int64_t bytes);
  float* take_floats(int64_t count) { return static_cast<float*>(take(count * int64_t{sizeof(float)})); }
  int64_t left_bytes() const { return left_; }
  /// The rest, as a workspace.
  View remaining() const;

 private:
  char* next_ = nullptr;
  int64_t left_ = 0;
  DeviceId device_;
};

}  // namespace vitrine::cpu
