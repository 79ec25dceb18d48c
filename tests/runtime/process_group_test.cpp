// SPDX-License-Identifier: Apache-2.0
// Process groups whose processes are threads of this test: exchanges and regular ends.
#include "runtime/process_group/process_group.h"

#include <atomic>
#include <filesystem>

#include "tests/runtime/fake_process.h"
#include "tests/runtime/processes.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

/// A port without a listener.
int free_port() { return process_group::port_of(listen_on(0)); }

/// Rendezvous by file and by port.
class ProcessGroups : public ::testing::TestWithParam<const char*> {
 protected:
  std::string init() const {
    return GetParam() == std::string("tcp") ? "tcp://127.0.0.1:" + std::to_string(free_port()) : place_.init();
  }
  void run(int size, const std::function<void(ProcessGroup&)>& work) const { run_processes(size, work, init()); }

  LeavesNothingBehind check_;
  RendezvousPlace place_;
};

INSTANTIATE_TEST_SUITE_P(Rendezvous, ProcessGroups, ::testing::Values("file", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ProcessGroups, KnowRanksSizesAndMachines) {
  std::atomic<int> local_ranks{0};
  const std::string where = init();
  run_processes(
      3,
      [&](ProcessGroup& process_group) {
        EXPECT_EQ(process_group.size(), 3);
        EXPECT_EQ(process_group.local_rank(), process_group.rank());
        EXPECT_EQ(process_group.local_size(), 3);
        local_ranks += 1 << process_group.local_rank();
        EXPECT_FALSE(process_group.over_mpi());
        EXPECT_FALSE(process_group.machine().empty());
        EXPECT_EQ(process_group.description(), "3 processes on 1 host, connected at " + where);
        EXPECT_FALSE(process_group.closed());
        process_group.close();
        EXPECT_TRUE(process_group.closed());
        EXPECT_EQ(process_group.failure(), "");
      },
      where);
  EXPECT_EQ(local_ranks, 7);
  EXPECT_FALSE(std::filesystem::exists(place_.path()));
}

TEST_P(ProcessGroups, GatherTheBytesOfAllRanksInOrderOnRankZero) {
  run(4, [&](ProcessGroup& process_group) {
    const auto part = [](int rank, int round) {
      // Some ranks' parts are empty, some have several megabytes.
      const size_t size = (rank + round) % 4 == 0   ? 0
                          : (rank + round) % 4 == 1 ? (size_t{3} << 20) + static_cast<size_t>(rank)
                                                    : 5;
      std::string bytes(size, static_cast<char>('a' + rank));
      for (size_t i = 0; i < bytes.size(); i += 4096) bytes[i] = static_cast<char>(round);
      return bytes;
    };
    for (int round = 0; round < 8; ++round) {
      const std::vector<std::string> all = process_group.gather("parts", part(process_group.rank(), round));
      ASSERT_EQ(all.size(), process_group.rank() == 0 ? 4U : 0U);
      for (int rank = 0; rank < static_cast<int>(all.size()); ++rank)
        EXPECT_TRUE(all[static_cast<size_t>(rank)] == part(rank, round)) << rank << " in round " << round;
    }
    process_group.close();
  });
}

TEST_P(ProcessGroups, ManySmallExchangesKeepTheirOrder) {
  run(4, [&](ProcessGroup& process_group) {
    for (int round = 0; round < 200; ++round) {
      EXPECT_EQ(process_group.sum("a count", {static_cast<double>(process_group.rank()), static_cast<double>(round)}),
                (std::vector<double>{6.0, 4.0 * round}));
      EXPECT_EQ(process_group.broadcast("an id", std::to_string(process_group.rank() * 1000 + round)),
                std::to_string(round));
      const auto answer = [](std::vector<std::string> parts) {
        for (std::string& part : parts) part = parts.back() + "+" + part;
        return parts;
      };
      const std::string mine = std::to_string(process_group.rank() * 1000 + round), last = std::to_string(3000 + round);
      EXPECT_EQ(process_group.exchange("an answer for each", mine, answer),
                process_group.rank() == 3 ? last + "+" + last : last + "+" + mine);
    }
    process_group.close();
  });
}

TEST_P(ProcessGroups, BroadcastTheBytesOfRankZero) {
  run(3, [&](ProcessGroup& process_group) {
    EXPECT_EQ(process_group.broadcast("an id", process_group.rank() == 0 ? "from rank 0" : "ignored"), "from rank 0");
    EXPECT_EQ(process_group.broadcast("nothing", ""), "");
    process_group.close();
  });
}

TEST_P(ProcessGroups, CompareTheBytesOfAllRanks) {
  run(3, [&](ProcessGroup& process_group) {
    EXPECT_TRUE(process_group.all_equal("a plan", "the same"));
    EXPECT_FALSE(process_group.all_equal("a plan", process_group.rank() == 1 ? "another" : "the same"));
    EXPECT_TRUE(process_group.all_equal("nothing", ""));
    process_group.close();
  });
}

TEST_P(ProcessGroups, FailOnAllRanksWhenRankZeroCannotAnswer) {
  std::vector<std::string> texts(3);
  run(3, [&](ProcessGroup& process_group) {
    const auto refuse = [](const std::vector<std::string>&) -> std::vector<std::string> { throw CommError("too odd"); };
    texts[static_cast<size_t>(process_group.rank())] =
        comm_error_of([&] { process_group.exchange("odd parts", "", refuse); });
  });
  EXPECT_EQ(texts[0], "too odd");
  for (const int rank : {1, 2})
    expect_contains(texts[static_cast<size_t>(rank)], "failed: the exchange of odd parts: too odd");
}

TEST(ProcessGroupMessages, PartsGoToRankZeroOnly) {
  const RendezvousPlace place;
  const std::string part(size_t{1} << 20, 'x');
  run_ranks(2, [&](int rank) {
    if (rank == 1) {
      FakeProcess member = join_as(1, 2, place.path());
      for (const uint64_t sequence : {1, 2}) {
        member.send(process_group::Gather{sequence, sequence == 1 ? "parts" : "plans", {part}});
        EXPECT_LT(member.wait_for<process_group::Gathered>().answer.bytes.size(), 64U);
      }
      return;
    }
    ProcessGroup process_group(process_options(0, 2, place.init()));
    EXPECT_EQ(process_group.gather("parts", part), std::vector<std::string>(2, part));
    process_group.all_equal("plans", part);
  });
}

TEST_P(ProcessGroups, RegisterTheDevicesOfAllRanks) {
  run(3, [&](ProcessGroup& process_group) {
    const std::vector<std::vector<std::string>> devices = {{"cuda:0", "cuda:1"}, {}, {"cuda:0"}};
    EXPECT_EQ(process_group.register_devices(devices[static_cast<size_t>(process_group.rank())]),
              (std::vector{2, 0, 1}));
    process_group.close();
  });
}

TEST_P(ProcessGroups, OneProcessNeedsNoRendezvous) {
  ProcessGroup process_group(ProcessGroupOptions{});
  EXPECT_EQ(process_group.description(), "1 process on 1 host");
  EXPECT_EQ(process_group.gather("x", "mine"), std::vector<std::string>{"mine"});
  EXPECT_EQ(process_group.register_devices({"cpu:0"}), std::vector{1});
  process_group.begin_collective(0, {});
  process_group.finish_collective(0);
  process_group.close();
}

CollectiveRecord record_of(int64_t sequence, uint64_t signature = 1) {
  CollectiveRecord r;
  r.sequence = static_cast<uint64_t>(sequence);
  r.signature = signature;
  r.operation = "all_reduce";
  r.label = "bucket " + std::to_string(sequence % 4);
  r.phase = "reduce";
  r.step = sequence / 4;
  r.bytes = 4096;
  return r;
}

TEST_P(ProcessGroups, CloseAfterTheSameCollectives) {
  run(4, [&](ProcessGroup& process_group) {
    process_group.register_devices({"cuda:0", "cuda:1"});
    // Two devices, each reported from a separate thread.
    run_ranks(2, [&](int device) {
      for (int64_t i = 0; i < 2000; ++i) {
        process_group.begin_collective(device, record_of(i));
        if (i % 2 == 0) process_group.finish_collective(device);
      }
    });
    process_group.close();
    EXPECT_TRUE(process_group.closed());
    EXPECT_EQ(process_group.failure(), "");
  });
}

TEST_P(ProcessGroups, FailToCloseAfterUnequalNumbersOfCollectives) {
  std::vector<std::string> texts(3);
  run(3, [&](ProcessGroup& process_group) {
    process_group.register_devices({"cpu:0"});
    for (int64_t i = 0; i < (process_group.rank() == 1 ? 5 : 6); ++i) process_group.begin_collective(0, record_of(i));
    texts[static_cast<size_t>(process_group.rank())] = comm_error_of([&] { process_group.close(); });
    EXPECT_EQ(process_group.failure(), texts[static_cast<size_t>(process_group.rank())]);
    EXPECT_FALSE(process_group.closed());
  });
  EXPECT_EQ(texts, std::vector<std::string>(3, texts[0]));
  expect_contains(texts[0], "rank 1 (pid ", "began 5 collectives, where ranks 0, 2 began 6",
                  "it did not begin collective 5 (all_reduce of bucket 1, 4096 bytes, phase reduce, step 1)");
}

TEST_P(ProcessGroups, CanBeUsedByOneDeviceGroupAfterAnother) {
  run(2, [&](ProcessGroup& process_group) {
    for (int64_t groups = 0; groups < 3; ++groups) {
      process_group.register_devices(std::vector<std::string>(static_cast<size_t>(3 - groups), "cpu:0"));
      const int group = process_group.new_group();
      EXPECT_EQ(group, groups);
      for (int device = 0; device < 3 - groups; ++device) {
        for (int64_t i = 0; i < 3; ++i) {
          CollectiveRecord r = record_of(i, static_cast<uint64_t>(groups + i));
          r.group = group;
          process_group.begin_collective(device, r);
        }
      }
      process_group.gather("the end of a part", "");
    }
    process_group.close();
  });
}

TEST_P(ProcessGroups, RefuseExchangesAfterClosing) {
  run(2, [&](ProcessGroup& process_group) {
    process_group.close();
    const std::string text = comm_error_of([&] { process_group.gather("late thoughts", ""); });
    expect_contains(text, "the exchange of late thoughts: this process has left the process group");
    process_group.fail("too late");  // no process is left to be notified
    EXPECT_EQ(process_group.failure(), "");
  });
}

TEST_P(ProcessGroups, CloseWhenOneRankIsMuchLater) {
  run(3, [&](ProcessGroup& process_group) {
    if (process_group.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    process_group.close();
    EXPECT_TRUE(process_group.closed());
  });
}

TEST_P(ProcessGroups, CanReuseARendezvous) {
  const std::string where = init();
  for (int i = 0; i < 3; ++i) {
    run_processes(
        2, [&](ProcessGroup& process_group) { process_group.close(); }, where);
  }
}

TEST(ProcessGroupOptions, RefuseInvalidValues) {
  EXPECT_THROW(ProcessGroup(process_options(2, 2, "file:/tmp/x")), ConfigError);
  EXPECT_THROW(ProcessGroup(process_options(-1, 2, "file:/tmp/x")), ConfigError);
  EXPECT_THROW(ProcessGroup(process_options(0, 0, "file:/tmp/x")), ConfigError);
  EXPECT_THROW(ProcessGroup(process_options(0, 2, "file:/tmp/x", 0)), ConfigError);
  EXPECT_THROW(ProcessGroup(process_options(0, 2, "nowhere")), ConfigError);
  EXPECT_THROW(ProcessGroup(process_options(1, 2, "nowhere")), ConfigError);
}

}  // namespace
}  // namespace vitrine::test
