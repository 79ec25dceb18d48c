// SPDX-License-Identifier: Apache-2.0
#include "kernels/tree_sum.h"

#include <array>
#include <cmath>

#include "runtime/error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/leaf_oracle.h"

namespace vitrine::test {
namespace {

class TreeSum : public DeviceTest {
 protected:
  Tensor tensor(DType dtype, const std::vector<std::byte>& bytes) {
    Tensor t = device.empty({static_cast<int64_t>(bytes.size()) / size_of(dtype)}, dtype);
    if (!bytes.empty()) copy(ctx(), ConstView(bytes.data(), t.shape(), dtype, DeviceId::host()), t);
    device.synchronize();
    return t;
  }
  std::vector<std::byte> bytes_of(const Tensor& t) {
    std::vector<std::byte> bytes(static_cast<size_t>(t.view().bytes()));
    if (!bytes.empty()) copy(ctx(), t, View{bytes.data(), t.shape(), t.dtype(), DeviceId::host()});
    device.synchronize();
    return bytes;
  }
  /// Adds a range of leaves, into the last input if there is one.
  Tensor sum_of(const Leaves& leaves, Subtree range, int64_t elements) {
    std::vector<Subtree> nodes;
    std::vector<Tensor> tensors;
    std::vector<ConstView> inputs;
    for (int64_t leaf = range.begin; leaf < range.end; ++leaf) {
      if (!leaves.has({leaf, leaf + 1})) continue;
      nodes.push_back({leaf, leaf + 1});
      tensors.push_back(tensor(leaves.dtype, leaves.stored_sums(nodes.back(), elements)));
      inputs.emplace_back(tensors.back().view());
    }
    tree_sum(ctx(), nodes, inputs, tensors.back());
    return tensors.back();
  }
};

TEST_F(TreeSum, HasTheBitsOfTheDefinitionHoweverLeavesAreDistributed) {
  uint64_t seed = 0;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int64_t count : {1, 2, 3, 5, 7, 8, 13, 21, 64}) {
      for (const int64_t elements : {1, 67, 200}) {
        const Leaves leaves(dtype, count, ++seed);
        EXPECT_EQ(leaves.first_wrong(bytes_of(sum_of(leaves, {0, count}, elements))), -1)
            << count << " leaves of " << dtype_name(dtype) << " at once";
        std::vector<Subtree> nodes;
        std::vector<Tensor> parts;
        std::vector<ConstView> inputs;
        for (const auto& [node, rank] : leaves.distributed(1 + static_cast<int>(seed % 8), true, seed)) {
          nodes.push_back(node);
          parts.push_back(sum_of(leaves, node, elements));
          inputs.emplace_back(parts.back().view());
        }
        const Tensor sum = device.empty({elements}, dtype);
        tree_sum(ctx(), nodes, inputs, sum);
        EXPECT_EQ(leaves.first_wrong(bytes_of(sum)), -1) << count << " leaves in " << nodes.size() << " nodes";
      }
    }
  }
}

TEST_F(TreeSum, SharesLargeSumsAmongThreadsAndSumsNothing) {
  const Leaves leaves(DType::f32, 3, 5);
  EXPECT_EQ(leaves.first_wrong(bytes_of(sum_of(leaves, {0, 3}, 70'001))), -1);
  EXPECT_EQ(sum_of(leaves, {0, 3}, 0).numel(), 0);
}

TEST_F(TreeSum, AddsNoZeroForMissingLeaves) {
  const std::vector<float> zeros(40, -0.0F);
  const Tensor a = device.tensor({40}, zeros), sum = device.empty({40});
  const std::array<Subtree, 2> nodes{Subtree{2, 3}, Subtree{7, 8}};
  const std::array<ConstView, 2> inputs{a.view(), a.view()};
  tree_sum(ctx(), nodes, inputs, sum);
  for (const float value : device.values(ConstView(sum.view()))) EXPECT_TRUE(std::signbit(value));
}

TEST_F(TreeSum, RefusesWrongArguments) {
  const Tensor a = device.empty({4}), b = device.empty({3}), c = device.empty({4});
  const auto error = [&](std::vector<Subtree> nodes, std::vector<ConstView> inputs, const View& output) {
    return error_of([&] { tree_sum(ctx(), nodes, inputs, output); });
  };
  expect_contains(error({{0, 1}}, {a, a}, c), "2 inputs for 1 nodes");
  expect_contains(error({{0, 1}, {1, 2}}, {a, b}, c), "input has shape (3), expected (4)");
  expect_contains(error({{0, 3}, {3, 4}}, {a, a}, c), "[0, 3) are no node");
  expect_contains(error({{1, 3}}, {a}, c), "[1, 3) are no node");
  expect_contains(error({{1, 2}, {0, 1}}, {a, a}, c), "overlap or descend");
  expect_contains(error({}, {}, c), "0 contributions, expected 1 to 256");
  expect_contains(error({{0, 1}}, {a.view().rows(0, 3)}, a.view().rows(1, 4)), "share memory");
}

TEST(LeafTree, SubtreesCoverLeavesAsFewAndAsLargeAsPossible) {
  using Nodes = std::vector<Subtree>;
  using Flags = std::vector<bool>;
  const auto subtrees = [](const Flags& held) { return aligned_subtrees(held, Flags(held.size(), true)); };
  EXPECT_EQ(subtrees(Flags(8, true)), (Nodes{{0, 8}}));
  EXPECT_EQ(subtrees(Flags(7, true)), (Nodes{{0, 7}}));
  EXPECT_EQ(subtrees({false, false, false, true, true, true, true}), (Nodes{{3, 4}, {4, 7}}));
  EXPECT_EQ(subtrees({false, true, true, true, true, true, false, false}), (Nodes{{1, 2}, {2, 4}, {4, 6}}));
  EXPECT_EQ(subtrees(Flags(4, false)), Nodes{});
  EXPECT_EQ(aligned_subtrees({true, false, true}, {true, false, true}), (Nodes{{0, 3}})) << "leaf 1 has no samples";
}

}  // namespace
}  // namespace vitrine::test
