// SPDX-License-Identifier: Apache-2.0
// Behavior of every communicator, on every backend.
#include <numeric>
#include <random>

#include "runtime/cpu/half_lanes.h"
#include "runtime/error.h"
#include "tests/runtime/communicator_group.h"
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
      std::vector<Tensor> all, input, output;
      for (int r = 0; r < n; ++r) {
        all.push_back(group.tensor(r, inputs[static_cast<size_t>(r)]));
        input.push_back(group.tensor(r, inputs[static_cast<size_t>(r)]));
        output.push_back(group.filled(r, count, -1.0F));
      }
      for_each_rank(
          group,
          [&](int r) {
            const auto i = static_cast<size_t>(r);
            group.comm(r).all_reduce(group.ctx(r), all[i]);
            group.comm(r).reduce(group.ctx(r), input[i], output[i], root);
            // In place on the root: the output is the input.
            group.comm(r).reduce(group.ctx(r), input[i], r == root ? View(input[i]) : View{}, root);
          },
          repeat == 1);
      for (int r = 0; r < n; ++r) {
        const auto i = static_cast<size_t>(r);
        expect_same_bits(group.values(r, all[i]), expected, "all_reduce");
        expect_same_bits(group.values(r, output[i]),
                         r == root ? expected : std::vector<float>(static_cast<size_t>(count), -1.0F), "reduce");
        expect_same_bits(group.values(r, input[i]), r == root ? expected : inputs[i], "reduce in place");
      }
    }
  }
}

TEST_P(CollectiveSizes, WorkOutOfPlace) {
  CommunicatorGroup group(GetParam());
  const int n = group.size();
  const int root = n - 1;
  for (const int64_t count : kCounts) {
    std::vector<std::vector<float>> inputs;
    std::vector<Tensor> input, sum, sent;
    for (int r = 0; r < n; ++r) {
      inputs.push_back(random_floats(count, static_cast<uint64_t>(r) + 1));
      input.push_back(group.tensor(r, inputs.back()));
      sum.push_back(group.filled(r, count, -1.0F));
      sent.push_back(group.filled(r, count, -1.0F));
    }
    for_each_rank(group, [&](int r) {
      const auto i = static_cast<size_t>(r);
      group.comm(r).all_reduce(group.ctx(r), input[i], sum[i]);
      group.comm(r).broadcast(group.ctx(r), r == root ? ConstView(input[i]) : ConstView(), sent[i], root);
    });
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<size_t>(r);
      expect_same_bits(group.values(r, sum[i]), sum_in_rank_order(inputs), "all_reduce");
      expect_same_bits(group.values(r, sent[i]), inputs.back(), "broadcast");
      expect_same_bits(group.values(r, input[i]), inputs[i], "the input stays");
    }
  }
}

/// Rounded to f16 or bf16.
std::vector<uint16_t> narrowed(const std::vector<float>& values, DType dtype) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    bits[i] = dtype == DType::f16 ? cpu::from_float<cpu::Half>(values[i]).bits
                                  : cpu::from_float<cpu::BFloat16>(values[i]).bits;
  }
  return bits;
}

TEST_P(CollectiveSizes, SumInSixteenBits) {
  CommunicatorGroup group(GetParam());
  const int n = group.size();
  const auto host = [](auto& bits, DType dtype) {
    return View{bits.data(), {static_cast<int64_t>(bits.size())}, dtype, DeviceId::host()};
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{65}, int64_t{4097}}) {
      // Integers whose sums have more digits than bf16, so rounding shows. NCCL would round at every hop: there the
      // sums are exact.
      const size_t numbers = group.comm(0).description().starts_with("NCCL") ? 16 : 256;
      std::vector<float> sum(static_cast<size_t>(count));
      std::vector<Tensor> all;
      for (int r = 0; r < n; ++r) {
        std::vector<float> values(static_cast<size_t>(count));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>((i * 37 + static_cast<size_t>(r) * 11) % numbers);
        for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
        std::vector<uint16_t> bits = narrowed(values, dtype);
        all.push_back(group.ctx(r).allocate({count}, dtype, Category::communication, "test"));
        copy(group.ctx(r), host(bits, dtype), all.back());
        group.ctx(r).stream().synchronize();
      }
      for_each_rank(group, [&](int r) { group.comm(r).all_reduce(group.ctx(r), all[static_cast<size_t>(r)]); });
      const std::vector<uint16_t> expected = narrowed(sum, dtype);
      for (int r = 0; r < n; ++r) {
        std::vector<uint16_t> found(expected.size());
        copy(group.ctx(r), all[static_cast<size_t>(r)], host(found, dtype));
        group.ctx(r).stream().synchronize();
        if (test_device_choice() != "cuda") {
          EXPECT_EQ(found, expected) << dtype_name(dtype) << " on rank " << r << ": added in f32 and rounded once";
          continue;
        }
        // NCCL rounds at each hop.
        const double roundoff = n * (dtype == DType::f16 ? 0x1p-11 : 0x1p-8);
        for (size_t i = 0; i < found.size(); ++i) {
          const float value =
              dtype == DType::f16 ? cpu::to_float(cpu::Half{found[i]}) : cpu::to_float(cpu::BFloat16{found[i]});
          ASSERT_NEAR(value, sum[i], roundoff * static_cast<double>(sum[i])) << dtype_name(dtype) << " on rank " << r;
        }
      }
    }
  }
}

TEST_P(CollectiveSizes, MinAndMaxInSixteenBits) {
  CommunicatorGroup group(GetParam());
  const auto host = [](auto& bits, DType dtype) {
    return View{bits.data(), {static_cast<int64_t>(bits.size())}, dtype, DeviceId::host()};
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t count : {int64_t{1}, int64_t{65}, int64_t{4097}}) {
      for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
        std::vector<float> expected;
        std::vector<Tensor> all;
        for (int r = 0; r < group.size(); ++r) {
          std::vector<float> values(static_cast<size_t>(count));
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>((i * 37 + static_cast<size_t>(r) * 101) % 251) - 125.0F;
          if (r == 0) expected = values;
          for (size_t i = 0; i < values.size(); ++i)
            expected[i] = op == ReduceOp::min ? std::min(expected[i], values[i]) : std::max(expected[i], values[i]);
          std::vector<uint16_t> bits = narrowed(values, dtype);
          all.push_back(group.ctx(r).allocate({count}, dtype, Category::communication, "test"));
          copy(group.ctx(r), host(bits, dtype), all.back());
          group.ctx(r).stream().synchronize();
        }
        for_each_rank(group, [&](int r) {
          const Tensor& mine = all[static_cast<size_t>(r)];
          group.comm(r).all_reduce(group.ctx(r), mine, mine, op);
        });
        for (int r = 0; r < group.size(); ++r) {
          std::vector<uint16_t> found(expected.size());
          copy(group.ctx(r), all[static_cast<size_t>(r)], host(found, dtype));
          group.ctx(r).stream().synchronize();
          EXPECT_EQ(found, narrowed(expected, dtype)) << dtype_name(dtype) << " on rank " << r;
        }
      }
    }
  }
}

TEST_P(CollectiveSizes, ReduceScatterThenAllGatherIsAllReduce) {
  CommunicatorGroup group(GetParam());
  const int n = group.size();
  for (const int64_t rows : {0, 1, 5, 257}) {
    std::vector<std::vector<float>> inputs;
    std::vector<Tensor> input, part, whole;
    for (int r = 0; r < n; ++r) {
      inputs.push_back(test::random_floats(rows * n * 3, static_cast<uint64_t>(r) + 100));
      input.push_back(group.tensor(r, inputs.back()).reshape({rows * n, 3}));
      part.push_back(group.filled(r, rows * 3, -1.0F).reshape({rows, 3}));
      whole.push_back(group.filled(r, rows * n * 3, -1.0F).reshape({rows * n, 3}));
    }
    for_each_rank(group, [&](int r) {
      const auto i = static_cast<size_t>(r);
      group.comm(r).reduce_scatter(group.ctx(r), input[i], part[i]);
      group.comm(r).all_gather(group.ctx(r), part[i], whole[i]);
      // In place: the output is this rank's part of the input.
      group.comm(r).reduce_scatter(group.ctx(r), input[i], input[i].rows(r * rows, (r + 1) * rows));
      group.comm(r).all_gather(group.ctx(r), input[i].rows(r * rows, (r + 1) * rows), input[i]);
    });
    const std::vector<float> expected = sum_in_rank_order(inputs);
    for (int r = 0; r < n; ++r) {
      expect_same_bits(group.values(r, whole[static_cast<size_t>(r)]), expected);
      expect_same_bits(group.values(r, input[static_cast<size_t>(r)]), expected, "in place");
    }
  }
}

TEST_P(CollectiveSizes, BroadcastScatterAndGatherMoveEveryRow) {
  CommunicatorGroup group(GetParam());
  const int n = group.size();
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    const int root = static_cast<int>(random() % static_cast<unsigned>(n));
    std::vector<int64_t> counts(static_cast<size_t>(n));
    for (int64_t& c : counts) c = random() % 3 == 0 ? 0 : random() % 700;
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const std::vector<float> data = random_floats(total * 5, random());
    std::vector<Tensor> source, part, back;
    for (int r = 0; r < n; ++r) {
      const int64_t own = counts[static_cast<size_t>(r)];
      source.push_back(r == root ? group.tensor(r, data) : group.filled(r, total * 5, 0.0F));
      part.push_back(group.filled(r, own * 5, -1.0F).reshape({own, 5}));
      back.push_back(group.filled(r, r == root ? total * 5 : 0, -1.0F));
    }
    for_each_rank(
        group,
        [&](int r) {
          const auto i = static_cast<size_t>(r);
          const bool is_root = r == root;
          const View own = counts[i] == 0 && round % 2 == 0 ? View{} : View(part[i]);
          group.comm(r).scatter(group.ctx(r), is_root ? ConstView(source[i].reshape({total, 5})) : ConstView{}, counts,
                                own, root);
          group.comm(r).gather(group.ctx(r), own, counts, is_root ? View(back[i].reshape({total, 5})) : View{}, root);
          group.comm(r).broadcast(group.ctx(r), source[i], root);
        },
        round % 2 == 1);
    int64_t begin = 0;
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<size_t>(r);
      const std::vector<float> rows(data.begin() + begin * 5, data.begin() + (begin + counts[i]) * 5);
      begin += counts[i];
      expect_same_bits(group.values(r, part[i]), rows, "scatter");
      expect_same_bits(group.values(r, source[i]), data, "broadcast");
    }
    expect_same_bits(group.values(root, back[static_cast<size_t>(root)]), data, "gather");
  }
}

TEST(Collectives, CopiesAcceptAnyDtype) {
  CommunicatorGroup group(3);
  std::vector<Tensor> bytes, whole;
  for (int r = 0; r < 3; ++r) {
    const std::vector<uint8_t> values(11, static_cast<uint8_t>(r + 1));
    bytes.push_back(group.ctx(r).allocate({11}, DType::u8, Category::communication, "bytes"));
    whole.push_back(group.ctx(r).allocate({33}, DType::u8, Category::communication, "whole"));
    copy(group.ctx(r), ConstView(values.data(), {11}, DType::u8, DeviceId::host()), bytes.back());
    group.ctx(r).stream().synchronize();
  }
  for_each_rank(group, [&](int r) {
    group.comm(r).all_gather(group.ctx(r), bytes[static_cast<size_t>(r)], whole[static_cast<size_t>(r)]);
    group.comm(r).broadcast(group.ctx(r), bytes[static_cast<size_t>(r)], 2);
  });
  group.devices.synchronize();
  for (int r = 0; r < 3; ++r) {
    std::vector<uint8_t> all(33), own(11);
    copy(group.ctx(r), whole[static_cast<size_t>(r)], View{all.data(), {33}, DType::u8, DeviceId::host()});
    copy(group.ctx(r), bytes[static_cast<size_t>(r)], View{own.data(), {11}, DType::u8, DeviceId::host()});
    group.devices.synchronize();
    for (size_t i = 0; i < 33; ++i) EXPECT_EQ(all[i], i / 11 + 1);
    EXPECT_EQ(own[10], 3);
  }
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

TEST(Collectives, OrderCheckerFindsAnUnorderedUseOfACollectivesBuffer) {
  CommunicatorGroup group(2);
  std::vector<Tensor> t;
  for (int r = 0; r < 2; ++r) t.push_back(group.filled(r, 64, 1.0F));
  group.devices.synchronize();
  for_each_rank(group,
                [&](int r) { group.comm(r).all_reduce(group.devices[r].communication(), t[static_cast<size_t>(r)]); });
  EXPECT_THROW(zero(group.ctx(0), t[0]), OrderError);
  group.devices.synchronize();
  EXPECT_NO_THROW(zero(group.ctx(0), t[0]));
}

}  // namespace
}  // namespace vitrine::test
