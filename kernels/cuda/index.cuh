// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "kernels/cuda/device.cuh"

/// Index arithmetic: in 32 bits with division by multiplication if the sizes allow it, otherwise in 64 bits.
namespace vitrine::cuda {

/// VITRINE_WIDE_INDICES, which tests set, treats all tensors as huge: indices have 64 bits, and grids fewer blocks than
/// there is work.
inline bool all_are_huge() {
  static const bool huge = std::getenv("VITRINE_WIDE_INDICES") != nullptr;
  return huge;
}

/// True when int32_t holds `largest`; sums of two such numbers then fit uint32_t.
inline bool fits_int32(int64_t largest) { return !all_are_huge() && largest <= std::numeric_limits<int32_t>::max(); }

/// Divides numbers >= 0 by a divisor > 0 that is known at launch.
template <class Index>
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(static_cast<Index>(divisor)) {}
  __device__ Index value() const { return divisor_; }
  __device__ Index quotient(Index n) const { return n / divisor_; }
  /// Returns the remainder and leaves the quotient in n.
  __device__ Index split(Index& n) const {
    const Index q = quotient(n);
    const Index remainder = n - q * divisor_;
    n = q;
    return remainder;
  }

 private:
  Index divisor_ = 1;
};

/// For 0 <= n < 2^31: with s = ceil(log2 d) and m = ceil(2^(31 + s) / d), m < 2^32 and n / d = n * m / 2^(31 + s)
/// rounded down.
template <>
class Divisor<int32_t> {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(static_cast<int32_t>(divisor)) {
    while ((int64_t{1} << shift_) < divisor) ++shift_;
    const auto d = static_cast<uint64_t>(divisor);
    magic_ = static_cast<uint32_t>(((uint64_t{1} << (31 + shift_)) + d - 1) / d);
  }
  __device__ int32_t value() const { return divisor_; }
  __device__ int32_t quotient(int32_t n) const {
    return static_cast<int32_t>(static_cast<uint32_t>(uint64_t{2U * static_cast<uint32_t>(n)} * magic_ >> 32) >>
                                shift_);
  }
  __device__ int32_t split(int32_t& n) const {
    const int32_t q = quotient(n);
    const int32_t remainder = n - q * divisor_;
    n = q;
    return remainder;
  }

 private:
  int32_t divisor_ = 1;
  uint32_t magic_ = uint32_t{1} << 31;
  uint32_t shift_ = 0;
};

/// A grid of `blocks` blocks (>= 1), limited to CUDA's maximum: kernels stride over the rest.
inline dim3 grid_of(int64_t blocks) {
  const int64_t most = all_are_huge() ? 3 : std::numeric_limits<int32_t>::max();
  return dim3(static_cast<unsigned>(std::min(blocks, most)));
}

/// Elements before the first 16-byte boundary that all buffers share, at most `count`; -1 when their alignments differ.
template <class T, class Pointers>
int64_t head_elements(const Pointers& buffers, int64_t count) {
  const auto misalignment = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16; };
  const uintptr_t first = misalignment(*std::begin(buffers));
  for (const void* p : buffers) {
    if (misalignment(p) != first) return -1;
  }
  return std::min<int64_t>(count, first == 0 ? 0 : static_cast<int64_t>((16 - first) / sizeof(T)));
}

}  // namespace vitrine::cuda
