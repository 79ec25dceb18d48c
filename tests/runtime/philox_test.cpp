// SPDX-License-Identifier: Apache-2.0
#include "runtime/philox.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace vitrine {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0}, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones}, {ones, ones, ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxSequence, FollowsTheCounter) {
  PhiloxSequence sequence(0x0000000500000003, 0x0000000b00000007);
  for (uint32_t block = 0; block < 3; ++block) {
    for (const uint32_t word : philox4x32({3, 5}, {block, 0, 7, 11})) EXPECT_EQ(sequence.next_u32(), word);
  }
}

TEST(PhiloxSequence, BeginsAtAnyWord) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{4}, uint64_t{7}, uint64_t{1003}}) {
    PhiloxSequence whole(3, 7), rest(3, 7, first);
    for (uint64_t skipped = 0; skipped < first; ++skipped) whole.next_u32();
    for (int i = 0; i < 9; ++i) EXPECT_EQ(rest.next_u32(), whole.next_u32()) << first;
  }
}

TEST(PhiloxSequence, SeedsAndStreamsDiffer) {
  PhiloxSequence a(1, 2), again(1, 2), other_seed(2, 2), other_stream(1, 3);
  const uint32_t first = a.next_u32();
  EXPECT_EQ(again.next_u32(), first);
  EXPECT_NE(other_seed.next_u32(), first);
  EXPECT_NE(other_stream.next_u32(), first);
}

TEST(PhiloxSequence, UniformIsUniform) {
  PhiloxSequence sequence(7, 0);
  constexpr int kDraws = 100'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = sequence.next_uniform();
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 1);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 0.005);
}

TEST(PhiloxSequence, NormalIsNormal) {
  PhiloxSequence sequence(8, 0);
  constexpr int kDraws = 100'000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = sequence.next_normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.02);
  EXPECT_NEAR(fourth / kDraws, 3, 0.2);
}

TEST(PhiloxSequence, BelowIsBoundedAndEven) {
  PhiloxSequence sequence(9, 0);
  std::vector<int> counts(7);
  for (int i = 0; i < 70'000; ++i) ++counts.at(sequence.next_below(7));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  // A bound of 3/4 of the range: without rejection the lower third would occur twice as often.
  for (const uint64_t bound : {uint64_t{3} << 30, uint64_t{3} << 62}) {
    int lower = 0;
    for (int i = 0; i < 30'000; ++i) {
      const uint64_t draw = sequence.next_below(bound);
      ASSERT_LT(draw, bound);
      lower += draw < bound / 3;
    }
    EXPECT_NEAR(lower, 10'000, 500);
  }
  EXPECT_EQ(sequence.next_below(1), 0U);
}

}  // namespace
}  // namespace vitrine
