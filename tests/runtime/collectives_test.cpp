// SPDX-License-Identifier: Apache-2.0
// Behavior of every communicator, on every backend.
#include "tests/runtime/communicator_group.h"
#include "tests/support/collective_cases.h"
#include "tests/support/seeds.h"

namespace vitrine::test {
namespace {

std::vector<float> sum_in_rank_order(const std::vector<std::vector<float>>& inputs) {
  std::vector<float> sum = inputs[0];
  for (size_t r = 1; r < inputs.size(); ++r) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += inputs[r][i];
  }
  return sum;
}

constexpr int64_t kCounts[] = {0, 1, 2, 7, 31, 64, 65, 1000, 4097, 70001};

class CollectiveSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveSizes,
                         ::testing::ValuesIn(kSeedStep == 1 ? std::vector{1, 2, 3, 4, 5, 6, 9} : std::vector{1, 2, 5}));

TEST_P(CollectiveSizes, SumsHaveTheBitsOfAdditionInRankOrder) {
  CommunicatorGroup group(GetParam());
  const int n = group.size();
  uint64_t seed = 1;
  for (const int64_t count : kCounts) {
    std::vector<std::vector<float>> inputs;
    for (int r = 0; r < n; ++r) inputs.push_back(random_floats(count, seed++, -3.0F, 5.0F));
    const std::vector<float> expected = sum_in_rank_order(inputs);
    const int root = static_cast<int>(seed % static_cast<uint64_t>(n));
    for (int repeat = 0; repeat < 2; ++repeat) {
      const int64_t part = count / n;
      std::vector<Tensor> all, input, output, scattered;
      for (int r = 0; r < n; ++r) {
        all.push_back(group.tensor(r, inputs[static_cast<size_t>(r)]));
        input.push_back(group.tensor(r, inputs[static_cast<size_t>(r)]));
        output.push_back(group.filled(r, count, -1.0F));
        scattered.push_back(group.filled(r, part, -1.0F));
      }
      for_each_rank(
          group,
          [&](int r) {
            const auto i = static_cast<size_t>(r);
            group.comm(r).reduce_scatter(group.ctx(r), all[i].rows(0, part * n), scattered[i]);
            group.comm(r).all_reduce(group.ctx(r), all[i]);
            group.comm(r).reduce(group.ctx(r), input[i], output[i], root);
            // In place on the root: the output is the input.
            group.comm(r).reduce(group.ctx(r), input[i], r == root ? View(input[i]) : View{}, root);
          },
          repeat == 1);
      for (int r = 0; r < n; ++r) {
        const auto i = static_cast<size_t>(r);
        const auto first = expected.begin() + r * part;
        expect_same_bits(group.values(r, scattered[i]), std::vector<float>(first, first + part), "reduce_scatter");
        expect_same_bits(group.values(r, all[i]), expected, "all_reduce");
        expect_same_bits(group.values(r, output[i]),
                         r == root ? expected : std::vector<float>(static_cast<size_t>(count), -1.0F), "reduce");
        expect_same_bits(group.values(r, input[i]), r == root ? expected : inputs[i], "reduce in place");
      }
    }
  }
}

TEST_P(CollectiveSizes, GiveEveryElementAsAmongProcesses) {
  DeviceGroup devices(group_options(GetParam(), test_backend(), TraceLevel::off));
  run_collective_cases(devices, GetParam() % 2 == 1, false);
}

TEST(Collectives, MetaCountsTheBytesOfEveryBackend) {
  std::vector<std::vector<int64_t>> bytes;
  CommunicatorGroup group(4, test_backend(), TraceLevel::phase);
  const auto issue = [](CommunicatorGroup& w) {
    for_each_rank(w, [&](int r) {
      const std::vector<int64_t> counts = {10, 0, 20, 30};
      ExecContext& ctx = w.ctx(r);
      const Tensor t = ctx.allocate({100}, DType::f32, Category::communication, "test");
      const Tensor whole = ctx.allocate({400}, DType::f32, Category::communication, "test");
      const Tensor part = t.rows(0, counts[static_cast<size_t>(r)]);
      const std::vector<std::function<void()>> calls = {
          [&] { w.comm(r).all_reduce(ctx, t); },
          [&] { w.comm(r).reduce(ctx, t, t, 0); },
          [&] { w.comm(r).broadcast(ctx, t, 1); },
          [&] { w.comm(r).reduce_scatter(ctx, whole, t); },
          [&] { w.comm(r).all_gather(ctx, t, whole); },
          [&] { w.comm(r).scatter(ctx, whole.rows(0, 60), counts, part, 0); },
          [&] { w.comm(r).gather(ctx, part, counts, whole.rows(0, 60), 0); },
      };
      for (const auto& call : calls) {
        const PhaseScope phase(ctx, Phase::reduce);
        call();
      }
    });
    w.devices.synchronize();
  };
  issue(group);
  const std::vector<std::vector<int64_t>> expected = {{600, 1200, 400, 1200, 1200, 200, 200},
                                                      {600, 400, 1200, 1200, 1200, 0, 0},
                                                      {600, 400, 400, 1200, 1200, 80, 80},
                                                      {600, 400, 400, 1200, 1200, 120, 120}};
  for (int r = 0; r < 4; ++r) {
    std::vector<int64_t> booked;
    for (const SpanRecord& span : group.ctx(r).stream().take_spans()) {
      if (span.info.phase == Phase::reduce) booked.push_back(span.bytes);
    }
    EXPECT_EQ(booked, expected[static_cast<size_t>(r)]) << "rank " << r;
  }
  CommunicatorGroup meta(4, Backend::meta);
  EXPECT_NO_THROW(issue(meta));
  EXPECT_EQ(meta.comm(0).description(), "meta, 4 ranks");
  if (!on_gpu()) {
    EXPECT_EQ(group.comm(0).description(), "in-process, 4 ranks");
  }
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(meta.devices[r].pool().statistics().peak_bytes, group.devices[r].pool().statistics().peak_bytes);
  }
}

}  // namespace
}  // namespace vitrine::test
