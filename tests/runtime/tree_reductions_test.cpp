// SPDX-License-Identifier: Apache-2.0
// Sums of contributions along the tree over leaves, on every communicator of one process.
#include <array>
#include <string>

#include "runtime/error.h"
#include "tests/runtime/communicator_group.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/leaf_oracle.h"

namespace vitrine::test {
namespace {

class TreeReductions : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TreeReductions, ::testing::Values(1, 2, 3, 5, 8));

Tensor stored(CommunicatorGroup& group, int rank, DType dtype, const std::vector<std::byte>& bytes) {
  const Shape shape{static_cast<int64_t>(bytes.size()) / size_of(dtype)};
  Tensor t = group.ctx(rank).allocate(shape, dtype, Category::communication, "test");
  if (!bytes.empty()) copy(group.ctx(rank), ConstView(bytes.data(), shape, dtype, DeviceId::host()), t);
  group.ctx(rank).stream().synchronize();
  return t;
}

std::vector<std::byte> bytes_of(CommunicatorGroup& group, int rank, const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.view().bytes()));
  if (!bytes.empty()) copy(group.ctx(rank), t, View{bytes.data(), t.shape(), t.dtype(), DeviceId::host()});
  group.ctx(rank).stream().synchronize();
  return bytes;
}

void check(CommunicatorGroup& group, const Leaves& leaves, const std::vector<Contribution>& contributions,
           int64_t elements, const std::string& what) {
  std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(group.size()));
  for (const auto& [node, rank] : contributions)
    inputs[static_cast<size_t>(rank)].push_back(stored(group, rank, leaves.dtype, leaves.stored_sums(node, elements)));
  std::vector<Tensor> outputs;
  for (int rank = 0; rank < group.size(); ++rank) {
    // Every second rank that contributes writes the sum in place of its last input.
    const auto& own = inputs[static_cast<size_t>(rank)];
    outputs.push_back(!own.empty() && rank % 2 == 0
                          ? own.back()
                          : group.ctx(rank).allocate({elements}, leaves.dtype, Category::communication, "output"));
  }
  for_each_rank(group, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const std::vector<ConstView> views(inputs[r].begin(), inputs[r].end());
    group.comm(rank).tree_all_reduce(group.ctx(rank), contributions, views, outputs[r]);
  });
  for (int rank = 0; rank < group.size(); ++rank)
    EXPECT_EQ(leaves.first_wrong(bytes_of(group, rank, outputs[static_cast<size_t>(rank)])), -1)
        << what << ", rank " << rank;
}

TEST_P(TreeReductions, HaveTheBitsOfTheDefinitionHoweverLeavesAreDistributed) {
  CommunicatorGroup group(GetParam());
  uint64_t seed = static_cast<uint64_t>(GetParam()) * 100;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int64_t count : {1, 4, 7, 11}) {
      for (const int64_t elements : {0, 1, 63, 700}) {
        for (const bool consecutive : {true, false}) {
          const Leaves leaves(dtype, count, ++seed);
          check(group, leaves, leaves.distributed(group.size(), consecutive, seed), elements,
                std::to_string(count) + " leaves of " + dtype_name(dtype) + ", seed " + std::to_string(seed));
        }
      }
    }
  }
}

TEST_P(TreeReductions, ScatteredAreThePartsOfTheWholeSum) {
  CommunicatorGroup group(GetParam());
  const int64_t part = 37, elements = part * group.size();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Leaves leaves(dtype, 11, 3);
    const std::vector<Contribution> contributions = leaves.distributed(group.size(), true, 4);
    std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(group.size()));
    for (const auto& [node, rank] : contributions) {
      inputs[static_cast<size_t>(rank)].push_back(stored(group, rank, dtype, leaves.stored_sums(node, elements)));
    }
    std::vector<Tensor> kept;
    std::vector<View> outputs;  // of every second rank that contributes, in its first input
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto& own = inputs[static_cast<size_t>(rank)];
      const bool in_place = !own.empty() && rank % 2 == 0;
      kept.push_back(in_place ? own.front()
                              : group.ctx(rank).allocate({part}, dtype, Category::communication, "output"));
      outputs.push_back(in_place ? kept.back().view().rows(rank * part, (rank + 1) * part) : kept.back().view());
    }
    for_each_rank(group, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const std::vector<ConstView> views(inputs[r].begin(), inputs[r].end());
      group.comm(rank).tree_reduce_scatter(group.ctx(rank), contributions, views, outputs[r]);
    });
    std::vector<std::byte> whole;
    for (int rank = 0; rank < group.size(); ++rank) {
      std::vector<std::byte> bytes(static_cast<size_t>(part * size_of(dtype)));
      copy(group.ctx(rank), outputs[static_cast<size_t>(rank)], View{bytes.data(), {part}, dtype, DeviceId::host()});
      group.ctx(rank).stream().synchronize();
      whole.insert(whole.end(), bytes.begin(), bytes.end());
    }
    EXPECT_EQ(leaves.first_wrong(whole), -1) << dtype_name(dtype);
  }
}

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
