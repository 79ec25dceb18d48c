// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace vitrine {

/// Four random 32-bit words as a pure function of key and counter: Philox4x32-10.
/// source  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

/// A sequence of numbers drawn from Philox at (seed, stream): for initialisation, sampling and generated data, never for dropout.
class PhiloxSequence {
 public:
  PhiloxSequence(uint64_t seed, uint64_t stream);
  uint32_t next_u32();
  /// Uniform in [0, 1), 24 bits.
  float next_uniform();
  /// Standard normal (Box-Muller).
  float next_normal();
  /// Uniform in [0, bound), unbiased; bound > 0.
  uint64_t next_below(uint64_t bound);

 private:
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
  uint64_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace vitrine
