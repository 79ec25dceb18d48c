// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <cmath>

#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine {
namespace {

// More rounds if a few functions determine a whole order: with eight, some orders of five samples occur twice as often
// as others.
constexpr uint32_t kRounds = 8, kRoundsOfFew = 24;
constexpr int64_t kFew = 1024;

/// Returns the smallest number whose square is at least `x`.
uint64_t square_root_above(uint64_t x) {
  auto root = static_cast<uint64_t>(std::sqrt(static_cast<double>(x)));
  while (root > 0 && (root - 1) * (root - 1) >= x) --root;
  while (root * root < x) ++root;
  return root;
}

}  // namespace

EpochOrder::EpochOrder(const SamplerConfig& config, int64_t count, int64_t epoch)
    : count_(count),
      shuffle_(config.shuffle),
      key_{static_cast<uint32_t>(config.seed), static_cast<uint32_t>(config.seed >> 32)},
      stream_(random_stream(RandomPurpose::shuffle, static_cast<uint64_t>(epoch))) {
  VITRINE_ASSERT(count >= 0 && epoch >= 0, "counts and epochs are not negative");
  if (count == 0) return;
  const auto size = static_cast<uint64_t>(count);
  rows_ = square_root_above(size);
  columns_ = (size + rows_ - 1) / rows_;
}

int64_t EpochOrder::operator[](int64_t place) const {
  VITRINE_ASSERT(place >= 0 && place < count_, "the place is not in the epoch");
  if (!shuffle_) return place;
  auto at = static_cast<uint64_t>(place);
  do {
    at = permute(at);
  } while (at >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(at);
}

uint64_t EpochOrder::permute(uint64_t place) const {
  uint64_t row = place / columns_, column = place % columns_;
  const uint32_t rounds = count_ <= kFew ? kRoundsOfFew : kRounds;
  for (uint32_t round = 0; round < rounds; round += 2) {
    row = (row + draw(round, column, rows_)) % rows_;
    column = (column + draw(round + 1, row, columns_)) % columns_;
  }
  return row * columns_ + column;
}

uint64_t EpochOrder::draw(uint32_t round, uint64_t input, uint64_t bound) const {
  const auto words = philox4x32(key_, {static_cast<uint32_t>(input), round, static_cast<uint32_t>(stream_),
                                       static_cast<uint32_t>(stream_ >> 32)});
  // Takes the high half of the product with 64 random bits, whose bias is below bound / 2^64.
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((Wide{words[0]} << 32 | words[1]) * bound >> 64);
}

int64_t batches_per_epoch(const SamplerConfig& config, int64_t count, int64_t batch_size) {
  VITRINE_ASSERT(count >= 0 && batch_size > 0, "a batch has at least one sample");
  const int64_t whole = count / batch_size;
  return whole + (!config.drop_last && whole * batch_size < count ? 1 : 0);
}

}  // namespace vitrine
