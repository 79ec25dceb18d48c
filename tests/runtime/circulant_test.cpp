// SPDX-License-Identifier: Apache-2.0
// The schedule by which many processes exchange the blocks of a buffer.
#include "runtime/comm/circulant.h"

#include <bit>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "runtime/comm/process_exchange.h"

namespace vitrine::comm {
namespace {

/// One element per block.
std::vector<int64_t> unit_offsets(int processes) {
  std::vector<int64_t> offsets(static_cast<size_t>(processes) + 1);
  std::iota(offsets.begin(), offsets.end(), int64_t{0});
  return offsets;
}

std::vector<int64_t> elements(const std::vector<int64_t>& offsets, int first, int blocks) {
  std::vector<int64_t> all;
  for (const ElementRange& range : block_ranges(offsets, first, blocks)) {
    for (int64_t i = range.begin; i < range.end; ++i) all.push_back(i);
  }
  return all;
}

class Circulant : public ::testing::TestWithParam<int> {};

TEST_P(Circulant, ForwardEveryProcessReceivesEveryBlockOnceInLogarithmicRounds) {
  const int size = GetParam();
  const std::vector<int64_t> offsets = unit_offsets(size);
  std::vector<std::set<int64_t>> held;
  for (int r = 0; r < size; ++r) held.push_back({r});
  const std::vector<CirculantRound> rounds = circulant_rounds(size);
  EXPECT_EQ(rounds.size(), static_cast<size_t>(std::bit_width(static_cast<unsigned>(size - 1))));
  for (const CirculantRound& round : rounds) {
    const std::vector<std::set<int64_t>> before = held;
    for (int r = 0; r < size; ++r) {
      for (const int64_t block : elements(offsets, r + round.distance, round.blocks)) {
        EXPECT_TRUE(before[static_cast<size_t>((r + round.distance) % size)].contains(block)) << "it gives what it has";
        EXPECT_TRUE(held[static_cast<size_t>(r)].insert(block).second) << "it gets nothing twice";
      }
    }
  }
  for (const std::set<int64_t>& all : held) EXPECT_EQ(all.size(), static_cast<size_t>(size));
}

TEST_P(Circulant, BackwardEveryBlockSumsEveryProcessOnce) {
  const int size = GetParam();
  const std::vector<int64_t> offsets = unit_offsets(size);
  // counts[r][b][p]: how often process r's partial sum of block b contains the part of process p.
  using Counts = std::vector<std::vector<int>>;
  std::vector<Counts> partials(static_cast<size_t>(size),
                               Counts(static_cast<size_t>(size), std::vector<int>(static_cast<size_t>(size), 0)));
  for (size_t r = 0; r < partials.size(); ++r) {
    for (auto& block : partials[r]) block[r] = 1;
  }
  std::vector<CirculantRound> rounds = circulant_rounds(size);
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    const std::vector<Counts> before = partials;
    for (int r = 0; r < size; ++r) {
      for (const int64_t block : elements(offsets, r, round->blocks)) {
        const auto& arrived =
            before[static_cast<size_t>((r + size - round->distance) % size)][static_cast<size_t>(block)];
        for (size_t p = 0; p < arrived.size(); ++p)
          partials[static_cast<size_t>(r)][static_cast<size_t>(block)][p] += arrived[p];
      }
    }
  }
  for (size_t r = 0; r < partials.size(); ++r)
    EXPECT_EQ(partials[r][r], std::vector<int>(static_cast<size_t>(size), 1));
}

TEST_P(Circulant, NoRoundReceivesMoreThanTheScratchHolds) {
  const int size = GetParam();
  for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{1} << 24}) {
    const int64_t part = sum_scratch_elements(DType::f32, count, size, 1) / (size / 2);
    for (const CirculantRound& round : circulant_rounds(size))
      EXPECT_LE(round.blocks * part, sum_scratch_elements(DType::f32, count, size, 1));
  }
  // With blocks as unequal as possible.
  std::vector<int64_t> counts, offsets = {0};
  for (int r = 0; r < size; ++r) {
    counts.push_back(r % 3 * 100);
    offsets.push_back(offsets.back() + counts.back());
  }
  for (const CirculantRound& round : circulant_rounds(size)) {
    for (int r = 0; r < size; ++r) {
      EXPECT_LE(static_cast<int64_t>(elements(offsets, r, round.blocks).size()),
                scattered_scratch_elements(DType::f32, counts, 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Circulant, ::testing::Values(2, 3, 4, 5, 6, 7, 8, 13, 16, 31, 65));

}  // namespace
}  // namespace vitrine::comm
