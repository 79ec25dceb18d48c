// SPDX-License-Identifier: Apache-2.0
// Numbers that reductions treat apart, errors and meta.
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/error.h"
#include "tests/runtime/communicator_group.h"
#include "tests/support/error_of.h"
#include "tests/support/seeds.h"

namespace vitrine::test {
namespace {

class Reductions : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Reductions,
                         ::testing::ValuesIn(kSeedStep == 1 ? std::vector{1, 2, 3, 5, 8} : std::vector{1, 2, 5}));

template <class T>
Tensor tensor_of(CommunicatorGroup& group, int rank, const std::vector<T>& values, DType dtype) {
  const Shape shape{static_cast<int64_t>(values.size())};
  Tensor t = group.ctx(rank).allocate(shape, dtype, Category::communication, "test");
  if (!values.empty()) copy(group.ctx(rank), ConstView(values.data(), shape, dtype, DeviceId::host()), t);
  group.ctx(rank).stream().synchronize();
  return t;
}

template <class T>
std::vector<T> values_of(CommunicatorGroup& group, int rank, const Tensor& t) {
  std::vector<T> values(static_cast<size_t>(t.numel()));
  if (!values.empty()) copy(group.ctx(rank), t, View{values.data(), t.shape(), t.dtype(), DeviceId::host()});
  group.ctx(rank).stream().synchronize();
  return values;
}

TEST_P(Reductions, IntegersAreNotRoundedAsFloatsWouldBe) {
  CommunicatorGroup group(GetParam());
  const int32_t large = (int32_t{1} << 24) + 1;  // not representable in f32
  std::vector<Tensor> all;
  for (int r = 0; r < group.size(); ++r) all.push_back(tensor_of(group, r, std::vector<int32_t>{large}, DType::i32));
  for_each_rank(group, [&](int r) { group.comm(r).all_reduce(group.ctx(r), all[static_cast<size_t>(r)]); });
  for (int r = 0; r < group.size(); ++r)
    EXPECT_EQ(values_of<int32_t>(group, r, all[static_cast<size_t>(r)])[0], large * group.size());
}

TEST_P(Reductions, PropagateNanThroughMinimumAndMaximum) {
  CommunicatorGroup group(GetParam());
  if (group.comm(0).description().starts_with("NCCL")) GTEST_SKIP() << "NCCL ignores NaNs";
  const int n = group.size();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    std::vector<Tensor> all;
    for (int r = 0; r < n; ++r) {
      std::vector<float> values(100, static_cast<float>(r));
      values[static_cast<size_t>(r)] = std::numeric_limits<float>::quiet_NaN();
      all.push_back(group.tensor(r, values));
    }
    for_each_rank(group, [&](int r) {
      group.comm(r).all_reduce(group.ctx(r), all[static_cast<size_t>(r)], all[static_cast<size_t>(r)], op);
    });
    const std::vector<float> found = group.values(0, all[0]);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::isnan(found[i]), i < static_cast<size_t>(n)) << i;
  }
}

TEST(ReductionErrors, NameInvalidArguments) {
  CommunicatorGroup group(2, Backend::cpu);
  const Tensor t = group.filled(0, 4, 0), other = group.filled(0, 4, 0), odd = group.filled(0, 3, 0),
               odd_output = group.filled(0, 3, 0);
  const Tensor bytes = tensor_of(group, 0, std::vector<uint8_t>(4), DType::u8);
  Communicator& comm = group.comm(0);
  ExecContext& ctx = group.ctx(0);
  EXPECT_EQ(error_of([&] { comm.all_reduce(ctx, bytes); }), "all_reduce: input is u8; expected f32, f16, bf16 or i32");
  EXPECT_EQ(error_of([&] { comm.all_to_all(ctx, odd, odd_output); }),
            "all_to_all: input has shape (3), but 2 ranks need a multiple of 2 rows");
  EXPECT_EQ(error_of([&] { comm.all_to_all(ctx, t, t); }), "all_to_all: output overlaps input; pass a separate tensor");
  EXPECT_EQ(error_of([&] { comm.send_receive(ctx, t, 2, other, 1); }),
            "send_receive: to is 2 but the group has ranks 0 to 1; pass one of them, or -1 for none");
  EXPECT_EQ(error_of([&] { comm.send_receive(ctx, View(), 1, other, 1); }),
            "send_receive: input is empty; pass a view of this rank's device");
}

TEST(ReductionErrors, NameRanksThatDisagree) {
  {
    CommunicatorGroup group(3, Backend::cpu);
    std::vector<Tensor> t;
    for (int r = 0; r < 3; ++r) t.push_back(group.filled(r, 4, 0));
    for (int r = 0; r < 3; ++r) {
      const auto i = static_cast<size_t>(r);
      group.comm(r).all_reduce(group.ctx(r), t[i], t[i], r == 2 ? ReduceOp::max : ReduceOp::sum);
    }
    EXPECT_EQ(error_of([&] { group.ctx(0).stream().synchronize(); }),
              "all_reduce: the ranks disagree in collective 0 of the group: operator sum on rank 0, 1; max on rank 2; "
              "every rank must issue the same "
              "collectives in the same order");
  }
  CommunicatorGroup group(3, Backend::cpu);
  std::vector<Tensor> input, output;
  for (int r = 0; r < 3; ++r) {
    input.push_back(group.filled(r, 4, 0));
    output.push_back(group.filled(r, 4, 0));
  }
  for (int r = 0; r < 3; ++r) {
    const auto i = static_cast<size_t>(r);
    group.comm(r).send_receive(group.ctx(r), input[i], r == 0 ? 1 : -1, output[i], r == 2 ? 0 : -1);
  }
  EXPECT_EQ(error_of([&] { group.ctx(0).stream().synchronize(); }),
            "send_receive: the ranks disagree in collective 0 of the group: rank 0 sends to rank 1, which does not "
            "receive from it");
}

TEST(ReductionsOnMeta, OnlyCountBytes) {
  CommunicatorGroup group(4, Backend::meta);
  for (int r = 0; r < 4; ++r) {
    const Tensor t = group.ctx(r).allocate({8}, DType::i32, Category::communication, "t");
    const Tensor u = group.ctx(r).allocate({8}, DType::i32, Category::communication, "u");
    group.comm(r).all_reduce(group.ctx(r), t, t, ReduceOp::max);
    group.comm(r).all_to_all(group.ctx(r), t, u);
    group.comm(r).send_receive(group.ctx(r), t, (r + 1) % 4, u, (r + 3) % 4);
    EXPECT_EQ(group.devices[r].pool().statistics().peak_bytes, 512) << "the two tensors, and nothing else";
  }
}

}  // namespace
}  // namespace vitrine::test
