// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace vitrine {

/// Order of samples in an epoch.
struct SamplerConfig {
  bool shuffle = true;
  bool drop_last = false;
  uint64_t seed = 0;
};

/// The order of one epoch: a permutation of [0, count) drawn from (seed, epoch), or 0, 1, 2, ... without shuffling.
/// Takes constant memory and computes each place independently, so that processes request only their own rows.
///
/// A Feistel network keyed by Philox permutes the rectangle [0, rows) x [0, columns), the smallest near-square of at
/// least `count` places. Places beyond the count are permuted again until they fall within it, fewer than two times on
/// average.
/// source  Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002
class EpochOrder {
 public:
  /// requires count >= 0 and 0 <= epoch < 2^40
  EpochOrder(const SamplerConfig& config, int64_t count, int64_t epoch);

  int64_t size() const { return count_; }
  /// Returns the sample at `place`, 0 <= place < size().
  int64_t operator[](int64_t place) const;
  /// Number of places that the network permutes: at least the count, and below count + sqrt(count) + 1.
  int64_t domain() const { return static_cast<int64_t>(rows_ * columns_); }

 private:
  uint64_t permute(uint64_t place) const;
  /// Draws a number below `bound` for `input` in a round of the network.
  uint64_t draw(uint32_t round, uint64_t input, uint64_t bound) const;

  int64_t count_;
  bool shuffle_;
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
  uint64_t rows_ = 0, columns_ = 0;
};

/// Number of optimizer steps of an epoch, including the last, shorter batch unless drop_last.
int64_t batches_per_epoch(const SamplerConfig& config, int64_t count, int64_t batch_size);

}  // namespace vitrine
