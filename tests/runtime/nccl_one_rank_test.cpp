// SPDX-License-Identifier: Apache-2.0
// NCCL with one rank, which every GPU can run: it shows that the library loads, joins and executes every operation.
#include <numeric>

#include "runtime/error.h"
#include "tests/runtime/communicator_group.h"

namespace vitrine::test {
namespace {

class NcclOneRank : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "NCCL needs a GPU; set VITRINE_TEST_DEVICES=cuda";
  }
};

std::vector<float> counting(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

TEST_F(NcclOneRank, TellsNcclsVersion) {
  CommunicatorGroup group(1);
  EXPECT_EQ(group.comm(0).description().rfind("NCCL 2.", 0), 0U) << group.comm(0).description();
  EXPECT_EQ(group.comm(0).size(), 1);
}

TEST_F(NcclOneRank, EveryOperationIsACopy) {
  CommunicatorGroup group(1);
  Communicator& comm = group.comm(0);
  ExecContext& ctx = group.ctx(0);
  const std::vector<float> values = counting(1000);
  const std::vector<int64_t> counts{1000};
  const Tensor input = group.tensor(0, values);
  const std::vector<std::pair<const char*, std::function<void(View)>>> operations = {
      {"all_reduce", [&](View out) { comm.all_reduce(ctx, input, out); }},
      {"all_reduce, average", [&](View out) { comm.all_reduce(ctx, input, out, ReduceOp::average); }},
      {"reduce", [&](View out) { comm.reduce(ctx, input, out, 0); }},
      {"broadcast", [&](View out) { comm.broadcast(ctx, input, out, 0); }},
      {"reduce_scatter", [&](View out) { comm.reduce_scatter(ctx, input, out); }},
      {"all_gather", [&](View out) { comm.all_gather(ctx, input, out); }},
      {"scatter", [&](View out) { comm.scatter(ctx, input, counts, out, 0); }},
      {"gather", [&](View out) { comm.gather(ctx, input, counts, out, 0); }},
      {"all_to_all", [&](View out) { comm.all_to_all(ctx, input, out); }},
      {"send_receive", [&](View out) { comm.send_receive(ctx, input, 0, out, 0); }},
  };
  for (const auto& [name, operation] : operations) {
    Tensor output = group.filled(0, 1000, -1);
    const auto& run = operation;
    for_each_rank(group, [&](int) { run(output); });
    EXPECT_EQ(group.values(0, output), values) << name;
  }
  for_each_rank(group, [&](int) { comm.barrier(ctx); });
  group.devices.synchronize();
}

TEST_F(NcclOneRank, AbortEndsTheGroupAndAnotherCanBeMade) {
  CommunicatorGroup group(1);
  group.comm(0).abort("planted: enough");
  EXPECT_EQ(group.comm(0).failure(), "planted: enough");
  EXPECT_THROW(for_each_rank(group, [&](int) { group.comm(0).barrier(group.ctx(0)); }), CommError);
  group.communicators = make_communicators(group.devices);
  Tensor t = group.filled(0, 8, 2);
  for_each_rank(group, [&](int) { group.comm(0).all_reduce(group.ctx(0), t); });
  EXPECT_EQ(group.values(0, t), std::vector<float>(8, 2));
}

}  // namespace
}  // namespace vitrine::test
