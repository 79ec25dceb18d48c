// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/communicator.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "runtime/comm/call.h"
#include "runtime/error.h"
#include "tests/runtime/communicator_group.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

using test::CommunicatorGroup;
using test::for_each_rank;

/// Message of the CommError that every rank's stream must report.
std::vector<std::string> comm_errors(CommunicatorGroup& group) {
  std::vector<std::string> messages;
  for (int rank = 0; rank < group.size(); ++rank) {
    messages.push_back(error_of<CommError>([&] { group.ctx(rank).stream().synchronize(); }));
    EXPECT_NE(messages.back(), "") << "rank " << rank << " has no error";
  }
  return messages;
}

TEST(CollectiveRecord, SignaturesTellCollectivesApart) {
  CommunicatorGroup group(1);
  ExecContext& ctx = group.ctx(0);
  std::set<uint64_t> signatures;
  size_t calls = 0;
  const auto add = [&](const comm::Call& call) {
    ++calls;
    signatures.insert(comm::record_of(ctx, call, 0).signature);
  };
  for (const int64_t step : {0, 1}) {
    ctx.set_step(step);
    for (const char* layer : {"", "bucket 1", "bucket 2"}) {
      const LayerScope scope(ctx, layer);
      for (int operation = 0; operation < comm::kOperationCount; ++operation) {
        for (int root = -1; root < 4; ++root) {
          comm::Call call{.operation = static_cast<comm::Operation>(operation), .count = 8, .root = root};
          add(call);
          call.count = 9;
          add(call);
          call.dtype = DType::f16;
          add(call);
          call.counts = {1, 2};
          add(call);
          call.counts = {2, 1};
          add(call);
        }
      }
    }
  }
  EXPECT_EQ(signatures.size(), calls);
}

// Ranks are delayed at random; some collectives run on the communication stream while others run on the compute stream.
TEST(Communicator, ManyCollectivesUnderRandomDelaysOnTwoStreams) {
  constexpr int kRanks = 4, kRounds = 60;
  constexpr int64_t kCount = 3000;
  CommunicatorGroup group(kRanks);
  std::vector<Tensor> first, second;
  for (int r = 0; r < kRanks; ++r) {
    first.push_back(group.filled(r, kCount, 1.0F));
    second.push_back(group.filled(r, kCount, static_cast<float>(r)));
  }
  group.devices.synchronize();
  for_each_rank(
      group,
      [&](int r) {
        std::mt19937 random(static_cast<unsigned>(r));
        const auto delay = [&](ExecContext& ctx) {
          const auto time = std::chrono::microseconds(random() % 4 == 0 ? random() % 200 : 0);
          ctx.dispatch({"delay", {}, {}, 0}, [time] { std::this_thread::sleep_for(time); });
        };
        ExecContext& compute = group.ctx(r);
        ExecContext& communication = group.devices[r].communication();
        for (int round = 0; round < kRounds; ++round) {
          delay(compute);
          delay(communication);
          if (round < 10) group.comm(r).all_reduce(compute, first[static_cast<size_t>(r)]);
          group.comm(r).broadcast(communication, second[static_cast<size_t>(r)], round % kRanks);
          group.comm(r).barrier(compute);
        }
      },
      true);
  group.devices.synchronize();
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(group.values(r, first[static_cast<size_t>(r)]), std::vector<float>(kCount, 1048576.0F));  // 4^10
    EXPECT_EQ(group.values(r, second[static_cast<size_t>(r)]), std::vector<float>(kCount, 0.0F));
  }
}

TEST(Communicator, RanksLeaveACollectiveTogether) {
  CommunicatorGroup group(2);
  Tensor a = group.filled(0, 100, 1.0F), b = group.filled(1, 100, 1.0F);
  std::atomic<bool> late{false};
  group.comm(0).barrier(group.ctx(0));
  group.ctx(0).dispatch({"check", {}, {}, 0}, [&] {
    if (!late) throw DataError("rank 0 left the barrier before rank 1 came");
  });
  group.ctx(1).dispatch({"delay", {}, {}, 0}, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    late = true;
  });
  group.comm(1).barrier(group.ctx(1));
  EXPECT_NO_THROW(group.devices.synchronize());
}

TEST(Communicator, DisagreementIsAnErrorOnEveryRankAndNamesTheFields) {
  CommunicatorGroup group(3);
  std::vector<Tensor> t;
  for (int r = 0; r < 3; ++r) t.push_back(group.filled(r, 12, 1.0F));
  const auto expect_error = [&](const std::function<void(int)>& issue, const std::vector<std::string>& parts) {
    for_each_rank(group, issue);
    const std::vector<std::string> messages = comm_errors(group);
    for (const std::string& message : messages) {
      EXPECT_EQ(message, messages[0]);
      for (const std::string& part : parts) expect_contains(message, part);
    }
  };
  const auto view = [&](int r, int64_t count) { return t[static_cast<size_t>(r)].rows(0, count).view(); };
  expect_error(
      [&](int r) {
        if (r == 1) {
          group.comm(r).broadcast(group.ctx(r), view(r, 12), 0);
        } else {
          group.comm(r).all_reduce(group.ctx(r), view(r, 12));
        }
      },
      {"operation all_reduce on rank 0, 2; broadcast on rank 1"});
  expect_error([&](int r) { group.comm(r).all_reduce(group.ctx(r), view(r, r == 2 ? 11 : 12)); },
               {"elements 12 on rank 0, 1; 11 on rank 2"});
  expect_error([&](int r) { group.comm(r).broadcast(group.ctx(r), view(r, 12), r == 0 ? 0 : 1); },
               {"root 0 on rank 0; 1 on rank 1, 2"});
  expect_error(
      [&](int r) {
        const std::vector<int64_t> counts = r == 2 ? std::vector<int64_t>{2, 1, 2} : std::vector<int64_t>{2, 2, 1};
        group.comm(r).gather(group.ctx(r), view(r, counts[static_cast<size_t>(r)]), counts,
                             r == 0 ? view(r, 5) : View{}, 0);
      },
      {"counts (2, 2, 1) on rank 0, 1; (2, 1, 2) on rank 2"});
  // Nothing was left behind: the group still works.
  for_each_rank(group, [&](int r) { group.comm(r).all_reduce(group.ctx(r), view(r, 12)); });
  EXPECT_NO_THROW(group.devices.synchronize());
  for (int r = 0; r < 3; ++r) EXPECT_EQ(group.values(r, t[static_cast<size_t>(r)]), std::vector<float>(12, 3.0F));
}

TEST(Communicator, AbortEndsWaitingAndLaterCollectivesButNotNewGroups) {
  CommunicatorGroup group(4);
  std::vector<Tensor> t;
  for (int r = 0; r < 4; ++r) t.push_back(group.filled(r, 64, 2.0F));
  for (int round = 0; round < 5; ++round) {
    for (int r = 0; r < 3; ++r) group.comm(r).all_reduce(group.ctx(r), t[static_cast<size_t>(r)]);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
      group.comm(0).abort("planted: enough");
    });
    other.join();
    group.comm(3).all_reduce(group.ctx(3), t[3]);
    for (const std::string& message : comm_errors(group)) EXPECT_EQ(message, "planted: enough");
    group.communicators = make_communicators(group.devices);
  }
  for_each_rank(group, [&](int r) { group.comm(r).all_reduce(group.ctx(r), t[static_cast<size_t>(r)]); });
  group.devices.synchronize();
  for (int r = 0; r < 4; ++r) EXPECT_EQ(group.values(r, t[static_cast<size_t>(r)]), std::vector<float>(64, 8.0F));
}

TEST(Communicator, AFailedStreamEndsItsPeersAndIsNamed) {
  CommunicatorGroup group(3);
  std::vector<Tensor> t;
  for (int r = 0; r < 3; ++r) t.push_back(group.filled(r, 64, 1.0F));
  for_each_rank(group, [&](int r) {
    if (r == 1) group.ctx(r).dispatch({"planted", {}, {}, 0}, [] { throw DataError("planted failure"); });
    group.comm(r).all_reduce(group.ctx(r), t[static_cast<size_t>(r)]);
    group.comm(r).barrier(group.ctx(r));
  });
  EXPECT_THROW(group.ctx(1).stream().synchronize(), DataError);
  for (const int r : {0, 2}) {
    expect_contains(error_of<CommError>([&] { group.ctx(r).stream().synchronize(); }),
                    "rank 1 (cpu:1) never took part");
  }
  group.communicators = make_communicators(group.devices);
  for_each_rank(group, [&](int r) { group.comm(r).all_reduce(group.ctx(r), t[static_cast<size_t>(r)]); });
  EXPECT_NO_THROW(group.devices.synchronize());
}

TEST(Communicator, DestructionWithUnmatchedCollectivesDoesNotHang) {
  CommunicatorGroup group(2);
  Tensor t = group.filled(0, 64, 1.0F);
  group.comm(0).all_reduce(group.ctx(0), t);
  group.communicators.clear();
  EXPECT_THROW(group.ctx(0).stream().synchronize(), CommError);
  EXPECT_NO_THROW(group.ctx(1).stream().synchronize());
}

TEST(Communicator, QueuedWorkOutlivesItsCommunicators) {
  CommunicatorGroup group(2);
  Tensor a = group.filled(0, 64, 1.0F), b = group.filled(1, 64, 2.0F);
  for (int r = 0; r < 2; ++r) {
    group.ctx(r).dispatch({"delay", {}, {}, 0}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); });
    group.comm(r).all_reduce(group.ctx(r), r == 0 ? a : b);
  }
  group.communicators.clear();
  EXPECT_NO_THROW(group.devices.synchronize());
  EXPECT_EQ(group.values(1, b), std::vector<float>(64, 3.0F));
}

TEST(Communicator, AWaitForALatePeerIsASpanWithItsName) {
  CommunicatorGroup group(3, Backend::cpu, TraceLevel::phase);
  for_each_rank(group, [&](int r) {
    // Much later than the others, whose threads may start late on a busy machine.
    if (r == 2)
      group.ctx(r).dispatch({"delay", {}, {}, 0}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    const PhaseScope phase(group.ctx(r), Phase::reduce);
    group.comm(r).barrier(group.ctx(r));
  });
  group.devices.synchronize();
  for (const int r : {0, 1}) {
    const std::vector<SpanRecord> spans = group.ctx(r).stream().take_spans();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].info.phase, Phase::wait);
    EXPECT_STREQ(spans[0].info.cause, "cpu:2 in barrier");
    EXPECT_GT(spans[0].end_ns - spans[0].begin_ns, 1000000);
    EXPECT_LE(spans[1].begin_ns, spans[0].begin_ns);
    EXPECT_GE(spans[1].end_ns, spans[0].end_ns);
  }
}

TEST(Communicator, RefusesInvalidViewsOnCpuAndMeta) {
  for (const Backend backend : {Backend::cpu, Backend::meta}) {
    CommunicatorGroup group(2, backend);
    ExecContext& ctx = group.ctx(0);
    Communicator& comm = group.comm(0);
    const auto make = [&](const Shape& shape, DType dtype = DType::f32) {
      return ctx.allocate(shape, dtype, Category::communication, "test");
    };
    EXPECT_THROW(comm.all_reduce(ctx, make({4}, DType::u8)), DtypeError);
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
    EXPECT_THROW(comm.barrier(group.ctx(1)), DeviceError);
    const Tensor elsewhere = group.ctx(1).allocate({4}, DType::f32, Category::communication, "test");
    EXPECT_THROW(comm.all_reduce(ctx, elsewhere), DeviceError);
  }
}

}  // namespace
}  // namespace vitrine
