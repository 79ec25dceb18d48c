// SPDX-License-Identifier: Apache-2.0
// Sums whose squares are summed on the way.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "runtime/comm/capabilities.h"
#include "runtime/error.h"
#include "runtime/square_sums.h"
#include "tests/runtime/communicator_group.h"

namespace vitrine::test {
namespace {

class SquaredReductions : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SquaredReductions, ::testing::Values(2, 3, 5));

Tensor squares_of(CommunicatorGroup& group, int rank, int64_t squared) {
  return group.ctx(rank).allocate({square_tiles(squared), 2}, DType::i32, Category::communication, "squares");
}

/// Null where squares take a separate pass.
SquaringCommunicator* squaring(CommunicatorGroup& group, int rank) {
  return dynamic_cast<SquaringCommunicator*>(&group.comm(rank));
}

std::vector<double> read(CommunicatorGroup& group, int rank, const Tensor& squares) {
  std::vector<double> sums(static_cast<size_t>(squares.shape()[0]));
  copy(group.ctx(rank), squares, View{sums.data(), squares.shape(), DType::i32, DeviceId::host()});
  group.ctx(rank).stream().synchronize();
  return sums;
}

/// Elements behind `squared` are summed only: totals of the loss follow the gradients.
TEST_P(SquaredReductions, EveryRankGetsTheSumAndTheSquaresOfItsTiles) {
  CommunicatorGroup group(GetParam());
  struct Counts {
    int64_t all, squared;
  };
  const Counts cases[] = {{5, 5},
                          {kSquareTile, kSquareTile - 1},
                          {4 * kSquareTile + 7, 4 * kSquareTile},
                          {6 * kSquareTile + 19, 6 * kSquareTile + 6}};
  for (const Counts& counts : cases) {
    const int64_t count = counts.all, squared = counts.squared;
    std::vector<Tensor> inouts, plain, squares;
    for (int rank = 0; rank < group.size(); ++rank) {
      const std::vector<float> values = random_floats(count, static_cast<uint64_t>(rank) + 1, -2.0F, 2.0F);
      inouts.push_back(group.tensor(rank, values));
      plain.push_back(group.tensor(rank, values));
      squares.push_back(squares_of(group, rank, squared));
    }
    std::vector<char> done(static_cast<size_t>(group.size()));
    for_each_rank(group, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      if (auto* const comm = squaring(group, rank)) {
        comm->all_reduce_and_square(group.ctx(rank), inouts[r], squared, squares[r]);
        done[r] = 1;
      }
      group.comm(rank).all_reduce(group.ctx(rank), plain[r]);
    });
    // On GPUs that would take a separate pass.
    EXPECT_EQ(std::count(done.begin(), done.end(), 1), test_backend() == Backend::cpu ? group.size() : 0);
    if (test_backend() != Backend::cpu) return;
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto r = static_cast<size_t>(rank);
      const std::vector<float> sums = group.values(rank, inouts[r]);
      expect_same_bits(sums, group.values(rank, plain[r]),
                       std::to_string(count) + " elements, rank " + std::to_string(rank));
      std::vector<double> expected(static_cast<size_t>(square_tiles(squared)), 0.0);
      for (int64_t i = 0; i < squared; ++i)
        expected[static_cast<size_t>(i / kSquareTile)] +=
            double{sums[static_cast<size_t>(i)]} * double{sums[static_cast<size_t>(i)]};
      const std::vector<double> got = read(group, rank, squares[r]);
      for (size_t tile = 0; tile < expected.size(); ++tile)
        EXPECT_NEAR(got[tile], expected[tile], 1e-12 * expected[tile]) << "tile " << tile;
    }
  }
}

TEST_P(SquaredReductions, ATileWithAnInfinityIsNotFinite) {
  CommunicatorGroup group(GetParam());
  if (test_backend() != Backend::cpu) GTEST_SKIP() << "the all-reduce of GPUs squares nothing";
  constexpr int64_t kCount = 3 * kSquareTile;
  std::vector<Tensor> inouts, squares;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<float> values(kCount, 1.0F);
    if (rank == 1) values[kSquareTile + 3] = std::numeric_limits<float>::infinity();
    inouts.push_back(group.tensor(rank, values));
    squares.push_back(squares_of(group, rank, kCount));
    squaring(group, rank)->all_reduce_and_square(group.ctx(rank), inouts.back(), kCount, squares.back());
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::vector<double> sums = read(group, rank, squares[static_cast<size_t>(rank)]);
    EXPECT_EQ(sums[0], static_cast<double>(kSquareTile * GetParam() * GetParam()));
    EXPECT_EQ(sums[1], std::numeric_limits<double>::infinity());
    EXPECT_EQ(sums[2], sums[0]);
  }
}

TEST(SquaredReduction, RefusesWrongArguments) {
  CommunicatorGroup group(2);
  if (test_backend() != Backend::cpu) GTEST_SKIP() << "the all-reduce of GPUs squares nothing";
  const Tensor inout = group.filled(0, 8, 1.0F), squares = squares_of(group, 0, 8);
  EXPECT_THROW(squaring(group, 0)->all_reduce_and_square(group.ctx(0), inout, 9, squares), ShapeError);
  EXPECT_THROW(squaring(group, 0)->all_reduce_and_square(group.ctx(0), inout, 0, squares), ShapeError);
  EXPECT_THROW(squaring(group, 0)->all_reduce_and_square(group.ctx(0), inout, 8, inout), DtypeError);
}

TEST(SquaredReduction, RanksThatSquareDifferentElementsFail) {
  CommunicatorGroup group(2);
  if (test_backend() != Backend::cpu) GTEST_SKIP() << "the all-reduce of GPUs squares nothing";
  const Tensor first = group.filled(0, 8, 1.0F), second = group.filled(1, 8, 1.0F), squares = squares_of(group, 0, 8);
  squaring(group, 0)->all_reduce_and_square(group.ctx(0), first, 8, squares);
  group.comm(1).all_reduce(group.ctx(1), second);
  for (int rank = 0; rank < 2; ++rank) EXPECT_THROW(group.ctx(rank).stream().synchronize(), CommError);
}

}  // namespace
}  // namespace vitrine::test
