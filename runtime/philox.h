// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace vitrine {

/// Four random 32-bit words as a pure function of key and counter: Philox4x32-10.
/// source  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

/// Purposes of random numbers. Streams of different purposes share no number under one seed. Dropout shares none
/// either: it counts (element, sample, step, layer) with layers from 1, far fewer than 2^24.
enum class RandomPurpose : uint32_t {
  initialization = 0,
  shuffle = 0x736875,         // "shu"
  synthetic_data = 0x73796e,  // "syn"
  augmentation = 0x617567,    // "aug"; its stream is the epoch
};
inline constexpr int kRandomStreamBits = 40;

/// Returns stream `index` (below 2^40) of a purpose.
uint64_t random_stream(RandomPurpose purpose, uint64_t index);

/// A sequence of random numbers from Philox at (seed, stream), for initialization, sampling and generated data; never
/// for dropout.
class PhiloxSequence {
 public:
  /// Begins at word `first` of the stream.
  PhiloxSequence(uint64_t seed, uint64_t stream, uint64_t first = 0);
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
