// SPDX-License-Identifier: Apache-2.0
// Sums of contributions along the tree over leaves: their order, errors.
#include <array>

#include "runtime/error.h"
#include "tests/runtime/communicator_group.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

TEST(TreeReduction, OfOneLeafForEachRankIsNotInRankOrder) {
  CommunicatorGroup group(5);
  // (0 + 1) + (2 + 3): in rank order, the small numbers would be rounded away one by one.
  std::vector<Contribution> contributions;
  std::vector<Tensor> inouts;
  for (int rank = 0; rank < group.size(); ++rank) {
    contributions.push_back({{rank, rank + 1}, rank});
    inouts.push_back(group.filled(rank, 5, rank == 0 ? 1.0F : rank == 2 || rank == 3 ? 0x1p-24F : 0.0F));
  }
  for_each_rank(group, [&](int rank) {
    const std::array<ConstView, 1> input{inouts[static_cast<size_t>(rank)].view()};
    group.comm(rank).tree_all_reduce(group.ctx(rank), contributions, input, inouts[static_cast<size_t>(rank)]);
  });
  for (int rank = 0; rank < group.size(); ++rank)
    EXPECT_EQ(group.values(rank, inouts[static_cast<size_t>(rank)]), std::vector<float>(5, 1.0F + 0x1p-23F));
}

TEST(TreeReduction, RefusesWrongArguments) {
  CommunicatorGroup group(2);
  const Tensor a = group.filled(0, 4, 1.0F), b = group.filled(0, 3, 1.0F), c = group.filled(0, 4, 1.0F);
  const auto error = [&](std::vector<Contribution> contributions, std::vector<ConstView> inputs, const View& output) {
    return error_of([&] { group.comm(0).tree_all_reduce(group.ctx(0), contributions, inputs, output); });
  };
  expect_contains(error({{{0, 1}, 2}}, {}, c), "rank 2 contributes, but the group has ranks 0 to 1");
  expect_contains(error({{{0, 1}, 0}, {{1, 2}, 1}}, {}, c), "rank 0 passes 0 inputs, but contributes at 1 nodes");
  expect_contains(error({{{0, 1}, 0}}, {b}, c), "an input has shape (3) but output (4) needs shape (4)");
  expect_contains(error({{{1, 2}, 0}, {{0, 1}, 1}}, {a}, c), "overlap or descend");
  expect_contains(error({}, {}, c), "0 contributions");
  const Tensor integers = group.ctx(0).allocate({4}, DType::i32, Category::communication, "test");
  expect_contains(error({{{0, 1}, 1}}, {}, integers), "output is i32; expected f32, f16 or bf16");
}

TEST(TreeReduction, RanksThatDisagreeOnContributionsFail) {
  CommunicatorGroup group(2);
  if (test_backend() != Backend::cpu) GTEST_SKIP() << "NCCL compares nothing";
  std::vector<Tensor> inouts;
  for (int rank = 0; rank < 2; ++rank) {
    inouts.push_back(group.filled(rank, 4, 1.0F));
    const std::vector<Contribution> contributions{{{0, 1}, 0}, {{1 + rank, 2 + rank}, 1}};
    const std::array<ConstView, 1> input{inouts.back().view()};
    group.comm(rank).tree_all_reduce(group.ctx(rank), contributions, input, inouts.back());
  }
  for (int rank = 0; rank < 2; ++rank)
    expect_contains(
        error_of([&] { group.ctx(rank).stream().synchronize(); }),
        "contributions [0, 1) of rank 0, [1, 2) of rank 1 on rank 0; [0, 1) of rank 0, [2, 3) of rank 1 on");
}

TEST(TreeReduction, MustBeOrderedAfterWhatWritesItsInputs) {
  CommunicatorGroup group(1);
  const Tensor input = group.filled(0, 64, 1.0F), output = group.filled(0, 64, 1.0F);
  zero(group.ctx(0), input);
  const std::vector<Contribution> contributions{{{0, 1}, 0}};
  const std::array<ConstView, 1> inputs{input.view()};
  EXPECT_THROW(group.comm(0).tree_all_reduce(group.devices[0].communication(), contributions, inputs, output.view()),
               OrderError);
}

}  // namespace
}  // namespace vitrine::test
