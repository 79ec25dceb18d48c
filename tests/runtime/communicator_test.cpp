// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/communicator.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/error.h"
#include "tests/support/device_fixture.h"

namespace vitrine {
namespace {

using test::expect_same_bits;
using test::random_floats;

DeviceGroupOptions options_for(int ranks, Backend backend = Backend::cpu, TraceLevel trace = TraceLevel::off) {
  DeviceGroupOptions options;
  for (int i = 0; i < ranks; ++i) options.devices.push_back({backend, i});
  options.memory_bytes = {int64_t{64} << 20};
  options.threads_per_device = {1};
  options.check_order = true;
  options.trace = trace;
  return options;
}

/// A group of devices with its communicators, and tensors on all of them.
struct World {
  explicit World(int ranks, Backend backend = Backend::cpu, TraceLevel trace = TraceLevel::off)
      : devices(options_for(ranks, backend, trace)), communicators(make_communicators(devices)) {}

  int size() const { return static_cast<int>(communicators.size()); }
  ExecContext& ctx(int rank) { return devices[rank].compute(); }
  Communicator& comm(int rank) { return *communicators[static_cast<size_t>(rank)]; }

  Tensor tensor(int rank, const std::vector<float>& values) {
    const Shape shape{static_cast<int64_t>(values.size())};
    Tensor t = ctx(rank).allocate(shape, DType::f32, Category::communication, "test");
    if (!values.empty()) copy(ctx(rank), ConstView(values.data(), shape, DType::f32, DeviceId::host()), t);
    ctx(rank).stream().synchronize();
    return t;
  }
  Tensor filled(int rank, int64_t count, float value) { return tensor(rank, std::vector<float>(static_cast<size_t>(count), value)); }

  std::vector<float> values(int rank, const Tensor& t) {
    std::vector<float> result(static_cast<size_t>(t.numel()));
    if (result.empty()) return result;
    copy(ctx(rank), t, View{result.data(), t.shape(), DType::f32, DeviceId::host()});
    ctx(rank).stream().synchronize();
    return result;
  }

  DeviceGroup devices;
  std::vector<std::unique_ptr<Communicator>> communicators;
};

void for_each_rank(World& world, const std::function<void(int)>& issue, bool threads = false) {
  if (!threads) {
    for (int rank = 0; rank < world.size(); ++rank) issue(rank);
    return;
  }
  std::vector<std::thread> hosts;
  for (int rank = 0; rank < world.size(); ++rank) hosts.emplace_back(issue, rank);
  for (std::thread& host : hosts) host.join();
}

/// The message of the CommError that every rank's stream must be in.
std::vector<std::string> comm_errors(World& world) {
  std::vector<std::string> messages;
  for (int rank = 0; rank < world.size(); ++rank) {
    try {
      world.ctx(rank).stream().synchronize();
      ADD_FAILURE() << "rank " << rank << " has no error";
      messages.emplace_back();
    } catch (const CommError& error) {
      messages.emplace_back(error.what());
    }
  }
  return messages;
}

std::vector<float> sum_in_rank_order(const std::vector<std::vector<float>>& inputs) {
  std::vector<float> sum = inputs[0];
  for (size_t r = 1; r < inputs.size(); ++r) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += inputs[r][i];
  }
  return sum;
}

constexpr int64_t kCounts[] = {0, 1, 2, 7, 31, 64, 65, 1000, 4097, 70001};

class CommunicatorSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorSizes, ::testing::Values(1, 2, 3, 4, 5, 6, 9));

TEST_P(CommunicatorSizes, SumsHaveTheBitsOfAddingInRankOrderEveryTime) {
  World world(GetParam());
  const int n = world.size();
  uint64_t seed = 1;
  for (const int64_t count : kCounts) {
    std::vector<std::vector<float>> inputs;
    for (int r = 0; r < n; ++r) inputs.push_back(random_floats(count, seed++, -3.0F, 5.0F));
    const std::vector<float> expected = sum_in_rank_order(inputs);
    const int root = static_cast<int>(seed % static_cast<uint64_t>(n));
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<Tensor> all, input, output;
      for (int r = 0; r < n; ++r) {
        all.push_back(world.tensor(r, inputs[static_cast<size_t>(r)]));
        input.push_back(world.tensor(r, inputs[static_cast<size_t>(r)]));
        output.push_back(world.filled(r, count, -1.0F));
      }
      for_each_rank(
          world,
          [&](int r) {
            const auto i = static_cast<size_t>(r);
            world.comm(r).all_reduce(world.ctx(r), all[i]);
            world.comm(r).reduce(world.ctx(r), input[i], output[i], root);
            // In place on the root: the output is the input.
            world.comm(r).reduce(world.ctx(r), input[i], r == root ? View(input[i]) : View{}, root);
          },
          repeat == 1);
      for (int r = 0; r < n; ++r) {
        const auto i = static_cast<size_t>(r);
        expect_same_bits(world.values(r, all[i]), expected, "all_reduce");
        expect_same_bits(world.values(r, output[i]), r == root ? expected : std::vector<float>(static_cast<size_t>(count), -1.0F), "reduce");
        expect_same_bits(world.values(r, input[i]), r == root ? expected : inputs[i], "reduce in place");
      }
    }
  }
}

TEST_P(CommunicatorSizes, ReduceScatterThenAllGatherIsAllReduce) {
  World world(GetParam());
  const int n = world.size();
  for (const int64_t rows : {0, 1, 5, 257}) {
    std::vector<std::vector<float>> inputs;
    std::vector<Tensor> input, part, whole;
    for (int r = 0; r < n; ++r) {
      inputs.push_back(test::random_floats(rows * n * 3, static_cast<uint64_t>(100 + r)));
      input.push_back(world.tensor(r, inputs.back()).reshape({rows * n, 3}));
      part.push_back(world.filled(r, rows * 3, -1.0F).reshape({rows, 3}));
      whole.push_back(world.filled(r, rows * n * 3, -1.0F).reshape({rows * n, 3}));
    }
    for_each_rank(world, [&](int r) {
      const auto i = static_cast<size_t>(r);
      world.comm(r).reduce_scatter(world.ctx(r), input[i], part[i]);
      world.comm(r).all_gather(world.ctx(r), part[i], whole[i]);
      // In place: the output is this rank's part of the input.
      world.comm(r).reduce_scatter(world.ctx(r), input[i], input[i].rows(r * rows, (r + 1) * rows));
      world.comm(r).all_gather(world.ctx(r), input[i].rows(r * rows, (r + 1) * rows), input[i]);
    });
    const std::vector<float> expected = sum_in_rank_order(inputs);
    for (int r = 0; r < n; ++r) {
      expect_same_bits(world.values(r, whole[static_cast<size_t>(r)]), expected);
      expect_same_bits(world.values(r, input[static_cast<size_t>(r)]), expected, "in place");
    }
  }
}

TEST_P(CommunicatorSizes, BroadcastScatterAndGatherMoveEveryRow) {
  World world(GetParam());
  const int n = world.size();
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
      source.push_back(r == root ? world.tensor(r, data) : world.filled(r, total * 5, 0.0F));
      part.push_back(world.filled(r, own * 5, -1.0F).reshape({own, 5}));
      back.push_back(world.filled(r, r == root ? total * 5 : 0, -1.0F));
    }
    for_each_rank(
        world,
        [&](int r) {
          const auto i = static_cast<size_t>(r);
          const bool is_root = r == root;
          const View own = counts[i] == 0 && round % 2 == 0 ? View{} : View(part[i]);
          world.comm(r).scatter(world.ctx(r), is_root ? ConstView(source[i].reshape({total, 5})) : ConstView{}, counts, own, root);
          world.comm(r).gather(world.ctx(r), own, counts, is_root ? View(back[i].reshape({total, 5})) : View{}, root);
          world.comm(r).broadcast(world.ctx(r), source[i], root);
        },
        round % 2 == 1);
    int64_t begin = 0;
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<size_t>(r);
      const std::vector<float> rows(data.begin() + begin * 5, data.begin() + (begin + counts[i]) * 5);
      begin += counts[i];
      expect_same_bits(world.values(r, part[i]), rows, "scatter");
      expect_same_bits(world.values(r, source[i]), data, "broadcast");
    }
    expect_same_bits(world.values(root, back[static_cast<size_t>(root)]), data, "gather");
  }
}

TEST(Communicator, CopiesTakeAnyDtype) {
  World world(3);
  std::vector<Tensor> bytes, whole;
  for (int r = 0; r < 3; ++r) {
    const std::vector<uint8_t> values(11, static_cast<uint8_t>(r + 1));
    bytes.push_back(world.ctx(r).allocate({11}, DType::u8, Category::communication, "bytes"));
    whole.push_back(world.ctx(r).allocate({33}, DType::u8, Category::communication, "whole"));
    copy(world.ctx(r), ConstView(values.data(), {11}, DType::u8, DeviceId::host()), bytes.back());
    world.ctx(r).stream().synchronize();
  }
  for_each_rank(world, [&](int r) {
    world.comm(r).all_gather(world.ctx(r), bytes[static_cast<size_t>(r)], whole[static_cast<size_t>(r)]);
    world.comm(r).broadcast(world.ctx(r), bytes[static_cast<size_t>(r)], 2);
  });
  world.devices.synchronize();
  for (const Tensor& w : whole) {
    for (int64_t i = 0; i < 33; ++i) EXPECT_EQ(w.view().as<uint8_t>()[i], i / 11 + 1);
  }
  for (const Tensor& b : bytes) EXPECT_EQ(b.view().as<uint8_t>()[10], 3);
}

// Ranks are held up at random; some collectives run on the communication stream while others run on the compute stream.
TEST(Communicator, ManyCollectivesUnderRandomDelaysOnTwoStreams) {
  constexpr int kRanks = 4, kRounds = 60;
  constexpr int64_t kCount = 3000;
  World world(kRanks);
  std::vector<Tensor> first, second;
  for (int r = 0; r < kRanks; ++r) {
    first.push_back(world.filled(r, kCount, 1.0F));
    second.push_back(world.filled(r, kCount, static_cast<float>(r)));
  }
  world.devices.synchronize();
  for_each_rank(
      world,
      [&](int r) {
        std::mt19937 random(static_cast<unsigned>(r));
        const auto delay = [&](ExecContext& ctx) {
          const auto time = std::chrono::microseconds(random() % 4 == 0 ? random() % 200 : 0);
          ctx.dispatch({"delay", {}, {}, 0}, [time] { std::this_thread::sleep_for(time); });
        };
        ExecContext& compute = world.ctx(r);
        ExecContext& communication = world.devices[r].communication();
        for (int round = 0; round < kRounds; ++round) {
          delay(compute);
          delay(communication);
          if (round < 10) world.comm(r).all_reduce(compute, first[static_cast<size_t>(r)]);
          world.comm(r).broadcast(communication, second[static_cast<size_t>(r)], round % kRanks);
          world.comm(r).barrier(compute);
        }
      },
      true);
  world.devices.synchronize();
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(world.values(r, first[static_cast<size_t>(r)]), std::vector<float>(kCount, 1048576.0F));  // 4^10
    EXPECT_EQ(world.values(r, second[static_cast<size_t>(r)]), std::vector<float>(kCount, 0.0F));
  }
}

TEST(Communicator, RanksOnlyLeaveTogether) {
  World world(2);
  Tensor a = world.filled(0, 100, 1.0F), b = world.filled(1, 100, 1.0F);
  std::atomic<bool> late{false};
  world.comm(0).barrier(world.ctx(0));
  world.ctx(0).dispatch({"check", {}, {}, 0}, [&] {
    if (!late) throw DataError("rank 0 left the barrier before rank 1 came");
  });
  world.ctx(1).dispatch({"delay", {}, {}, 0}, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    late = true;
  });
  world.comm(1).barrier(world.ctx(1));
  EXPECT_NO_THROW(world.devices.synchronize());
}

TEST(Communicator, DisagreementIsAnErrorOnEveryRankAndNamesTheFields) {
  World world(3);
  std::vector<Tensor> t;
  for (int r = 0; r < 3; ++r) t.push_back(world.filled(r, 12, 1.0F));
  const auto expect_error = [&](const std::function<void(int)>& issue, const std::vector<std::string>& parts) {
    for_each_rank(world, issue);
    const std::vector<std::string> messages = comm_errors(world);
    for (const std::string& message : messages) {
      EXPECT_EQ(message, messages[0]);
      for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    }
  };
  const auto view = [&](int r, int64_t count) { return t[static_cast<size_t>(r)].rows(0, count).view(); };
  expect_error(
      [&](int r) {
        if (r == 1) {
          world.comm(r).broadcast(world.ctx(r), view(r, 12), 0);
        } else {
          world.comm(r).all_reduce(world.ctx(r), view(r, 12));
        }
      },
      {"operation all_reduce on rank 0, 2; broadcast on rank 1"});
  expect_error([&](int r) { world.comm(r).all_reduce(world.ctx(r), view(r, r == 2 ? 11 : 12)); }, {"elements 12 on rank 0, 1; 11 on rank 2"});
  expect_error([&](int r) { world.comm(r).broadcast(world.ctx(r), view(r, 12), r == 0 ? 0 : 1); }, {"root 0 on rank 0; 1 on rank 1, 2"});
  expect_error(
      [&](int r) {
        const std::vector<int64_t> counts = r == 2 ? std::vector<int64_t>{2, 1, 2} : std::vector<int64_t>{2, 2, 1};
        world.comm(r).gather(world.ctx(r), view(r, counts[static_cast<size_t>(r)]), counts, r == 0 ? view(r, 5) : View{}, 0);
      },
      {"counts (2, 2, 1) on rank 0, 1; (2, 1, 2) on rank 2"});
  // Nothing was left behind: the group works on.
  for_each_rank(world, [&](int r) { world.comm(r).all_reduce(world.ctx(r), view(r, 12)); });
  EXPECT_NO_THROW(world.devices.synchronize());
  for (int r = 0; r < 3; ++r) EXPECT_EQ(world.values(r, t[static_cast<size_t>(r)]), std::vector<float>(12, 3.0F));
}

TEST(Communicator, AbortEndsWaitingAndLaterCollectivesAndNewGroupsWork) {
  World world(4);
  std::vector<Tensor> t;
  for (int r = 0; r < 4; ++r) t.push_back(world.filled(r, 64, 2.0F));
  for (int round = 0; round < 5; ++round) {
    for (int r = 0; r < 3; ++r) world.comm(r).all_reduce(world.ctx(r), t[static_cast<size_t>(r)]);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
      world.comm(0).abort("planted: enough");
    });
    other.join();
    world.comm(3).all_reduce(world.ctx(3), t[3]);
    for (const std::string& message : comm_errors(world)) EXPECT_EQ(message, "planted: enough");
    world.communicators = make_communicators(world.devices);
  }
  for_each_rank(world, [&](int r) { world.comm(r).all_reduce(world.ctx(r), t[static_cast<size_t>(r)]); });
  world.devices.synchronize();
  for (int r = 0; r < 4; ++r) EXPECT_EQ(world.values(r, t[static_cast<size_t>(r)]), std::vector<float>(64, 8.0F));
}

TEST(Communicator, RankWhoseStreamFailedEndsItsPeersByName) {
  World world(3);
  std::vector<Tensor> t;
  for (int r = 0; r < 3; ++r) t.push_back(world.filled(r, 64, 1.0F));
  for_each_rank(world, [&](int r) {
    if (r == 1) world.ctx(r).dispatch({"planted", {}, {}, 0}, [] { throw DataError("planted failure"); });
    world.comm(r).all_reduce(world.ctx(r), t[static_cast<size_t>(r)]);
    world.comm(r).barrier(world.ctx(r));
  });
  EXPECT_THROW(world.ctx(1).stream().synchronize(), DataError);
  for (const int r : {0, 2}) {
    try {
      world.ctx(r).stream().synchronize();
      FAIL() << "rank " << r << " has no error";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 (cpu:1) never took part"), std::string::npos) << error.what();
    }
  }
  world.communicators = make_communicators(world.devices);
  for_each_rank(world, [&](int r) { world.comm(r).all_reduce(world.ctx(r), t[static_cast<size_t>(r)]); });
  EXPECT_NO_THROW(world.devices.synchronize());
}

TEST(Communicator, DestroyedWithUnmatchedCollectivesNobodyHangs) {
  World world(2);
  Tensor t = world.filled(0, 64, 1.0F);
  world.comm(0).all_reduce(world.ctx(0), t);
  world.communicators.clear();
  EXPECT_THROW(world.ctx(0).stream().synchronize(), CommError);
  EXPECT_NO_THROW(world.ctx(1).stream().synchronize());
}

TEST(Communicator, QueuedWorkOutlivesItsCommunicators) {
  World world(2);
  Tensor a = world.filled(0, 64, 1.0F), b = world.filled(1, 64, 2.0F);
  for (int r = 0; r < 2; ++r) {
    world.ctx(r).dispatch({"delay", {}, {}, 0}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
    world.comm(r).all_reduce(world.ctx(r), r == 0 ? a : b);
  }
  world.communicators.clear();
  EXPECT_NO_THROW(world.devices.synchronize());
  EXPECT_EQ(world.values(1, b), std::vector<float>(64, 3.0F));
}

TEST(Communicator, WaitForALatePeerIsASpanThatNamesIt) {
  World world(3, Backend::cpu, TraceLevel::phase);
  for_each_rank(world, [&](int r) {
    if (r == 2) world.ctx(r).dispatch({"delay", {}, {}, 0}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    const PhaseScope phase(world.ctx(r), Phase::reduce);
    world.comm(r).barrier(world.ctx(r));
  });
  world.devices.synchronize();
  for (const int r : {0, 1}) {
    const std::vector<SpanRecord> spans = world.ctx(r).stream().take_spans();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].info.phase, Phase::wait);
    EXPECT_STREQ(spans[0].info.cause, "cpu:2 in barrier");
    EXPECT_GT(spans[0].end_ns - spans[0].begin_ns, 1000000);
    EXPECT_LE(spans[1].begin_ns, spans[0].begin_ns);
    EXPECT_GE(spans[1].end_ns, spans[0].end_ns);
  }
}

TEST(Communicator, RefusesViewsThatCannotBeMeant) {
  for (const Backend backend : {Backend::cpu, Backend::meta}) {
    World world(2, backend);
    ExecContext& ctx = world.ctx(0);
    Communicator& comm = world.comm(0);
    const auto make = [&](const Shape& shape, DType dtype = DType::f32) { return ctx.allocate(shape, dtype, Category::communication, "test"); };
    EXPECT_THROW(comm.all_reduce(ctx, make({4}, DType::i32)), DtypeError);
    EXPECT_THROW(comm.all_reduce(ctx, View{}), ShapeError);
    EXPECT_THROW(comm.reduce(ctx, make({4}), make({5}), 0), ShapeError);
    EXPECT_THROW(comm.reduce(ctx, make({4}), make({4}), 2), CommError);
    EXPECT_THROW(comm.broadcast(ctx, make({4}), -1), CommError);
    EXPECT_THROW(comm.reduce_scatter(ctx, make({5}), make({2})), ShapeError);
    EXPECT_THROW(comm.all_gather(ctx, make({2}), make({5})), ShapeError);
    EXPECT_THROW(comm.all_gather(ctx, make({2}), make({4}, DType::i32)), DtypeError);
    EXPECT_THROW(comm.scatter(ctx, make({3, 2}), std::vector<int64_t>{1, 1}, make({1, 2}), 0), ShapeError);
    EXPECT_THROW(comm.scatter(ctx, make({2, 2}), std::vector<int64_t>{1, 1}, make({2, 2}), 0), ShapeError);
    EXPECT_THROW(comm.scatter(ctx, make({2, 2}), std::vector<int64_t>{2}, make({2, 2}), 0), ShapeError);
    EXPECT_THROW(comm.gather(ctx, make({0, 2}), std::vector<int64_t>{0, -1}, make({0, 2}), 0), ShapeError);
    EXPECT_THROW(comm.barrier(world.ctx(1)), DeviceError);
    const Tensor elsewhere = world.ctx(1).allocate({4}, DType::f32, Category::communication, "test");
    EXPECT_THROW(comm.all_reduce(ctx, elsewhere), DeviceError);
  }
}

TEST(Communicator, MetaBooksTheBytesOfCpu) {
  std::vector<std::vector<int64_t>> bytes;
  World world(4, Backend::cpu, TraceLevel::phase);
  const auto issue = [](World& w) {
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
  issue(world);
  const std::vector<std::vector<int64_t>> expected = {{600, 1200, 400, 1200, 1200, 200, 200},
                                                      {600, 400, 1200, 1200, 1200, 0, 0},
                                                      {600, 400, 400, 1200, 1200, 80, 80},
                                                      {600, 400, 400, 1200, 1200, 120, 120}};
  for (int r = 0; r < 4; ++r) {
    std::vector<int64_t> booked;
    for (const SpanRecord& span : world.ctx(r).stream().take_spans()) {
      if (span.info.phase == Phase::reduce) booked.push_back(span.bytes);
    }
    EXPECT_EQ(booked, expected[static_cast<size_t>(r)]) << "rank " << r;
  }
  World meta(4, Backend::meta);
  EXPECT_NO_THROW(issue(meta));
  EXPECT_EQ(meta.comm(0).description(), "meta, 4 ranks");
  EXPECT_EQ(world.comm(0).description(), "in-process, 4 ranks");
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(meta.devices[r].pool().statistics().peak_bytes, world.devices[r].pool().statistics().peak_bytes);
  }
}

TEST(Communicator, OrderCheckerSeesACollectiveAndAnUnorderedUse) {
  World world(2);
  std::vector<Tensor> t;
  for (int r = 0; r < 2; ++r) t.push_back(world.filled(r, 64, 1.0F));
  world.devices.synchronize();
  for_each_rank(world, [&](int r) { world.comm(r).all_reduce(world.devices[r].communication(), t[static_cast<size_t>(r)]); });
  EXPECT_THROW(zero(world.ctx(0), t[0]), OrderError);
  world.devices.synchronize();
  EXPECT_NO_THROW(zero(world.ctx(0), t[0]));
}

}  // namespace
}  // namespace vitrine
