// SPDX-License-Identifier: Apache-2.0
// A process of a world dies, hangs, is late, fails or does something else than the others: all of them learn who it was, and what waits ends.
#include <atomic>
#include <filesystem>
#include <mutex>

#include <unistd.h>

#include "runtime/world/world.h"
#include "tests/runtime/fake_process.h"
#include "tests/runtime/processes.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

// What is too late, where lateness is wanted.
constexpr int64_t kImpatientMs = 400;
// The same, long enough for a silence to be noticed.
constexpr int64_t kSilentMs = 2000;

CollectiveRecord record_of(uint64_t sequence, uint64_t signature = 1) {
  CollectiveRecord r;
  r.sequence = sequence;
  r.signature = signature;
  r.operation = "all_reduce";
  r.label = "bucket " + std::to_string(sequence);
  r.phase = "reduce";
  r.step = 5;
  r.bytes = 4096;
  return r;
}

/// Waits for the world's failure.
std::string verdict_of(const World& world) {
  while (world.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return world.failure();
}

class WorldFailure : public ::testing::Test {
 protected:
  /// Notes what a process learnt; the others must have learnt the same.
  void note(int rank, const std::string& verdict) {
    const std::lock_guard lock(mutex_);
    if (verdict_.empty()) verdict_ = verdict;
    EXPECT_EQ(verdict, verdict_) << "on rank " << rank;
    ++noted_;
  }
  int noted() {
    const std::lock_guard lock(mutex_);
    return noted_;
  }
  void expect_verdict(int noted, std::initializer_list<const char*> parts) const {
    EXPECT_EQ(noted_, noted);
    for (const char* part : parts) expect_contains(verdict_, part);
  }
  /// The world has failed: all that can be called ends with this reason.
  static void expect_all_calls_fail(World& world, const std::string& verdict) {
    EXPECT_EQ(world.failure(), verdict);
    EXPECT_EQ(comm_error_of([&] { world.gather("more", ""); }), verdict);
    EXPECT_EQ(comm_error_of([&] { world.broadcast("more", ""); }), verdict);
    EXPECT_EQ(comm_error_of([&] { world.register_devices({"cpu:0"}); }), verdict);
    EXPECT_EQ(comm_error_of([&] { world.close(); }), verdict);
    world.fail("another reason");
    EXPECT_EQ(world.failure(), verdict);
    std::atomic<bool> called{false};
    world.on_failure([&](const std::string& reason) {
      EXPECT_EQ(reason, verdict);
      called = true;
    });
    while (!called) std::this_thread::yield();  // at once, or where the others are being called
  }

 private:
  std::mutex mutex_;
  std::string verdict_;
  int noted_ = 0;
  LeavesNothingBehind check_;
};

TEST_F(WorldFailure, ADeathIsToldToAllWhoWait) {
  run_processes(4, [&](World& world) {
    if (world.rank() == 2) return;  // its world goes without a word
    std::atomic<int> calls{0};
    std::string told;
    world.on_failure([&](const std::string& reason) {
      told = reason;
      ++calls;
    });
    const std::string verdict = comm_error_of([&] { world.gather("the votes", ""); });
    note(world.rank(), verdict);
    expect_all_calls_fail(world, verdict);
    while (calls == 0) std::this_thread::yield();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(told, verdict);
  });
  expect_verdict(3, {"rank 2 (pid ", ") died: its connection closed without a word; it had begun no collective",
                     "its last exchange was for the machine it runs on"});
}

TEST_F(WorldFailure, ADeathIsNoticedThoughNobodyWaits) {
  run_processes(3, [&](World& world) {
    world.register_devices({"cuda:0"});
    world.begin_collective(0, record_of(0));
    world.finish_collective(0);
    world.gather("a step", "");
    if (world.rank() != 1) world.begin_collective(0, record_of(1));
    world.gather("another step", "");
    if (world.rank() == 1) return;
    note(world.rank(), verdict_of(world));
  });
  expect_verdict(
      2, {"rank 1 (pid ", "died", "its last known was collective 0 (all_reduce of bucket 0, 4096 bytes, phase reduce, step 5), which it finished",
          "others have come to collective 1 (all_reduce of bucket 1"});
}

TEST_F(WorldFailure, TheDeathOfRankZeroIsNoticedByEachOfTheOthers) {
  std::vector<std::string> verdicts(3);
  run_processes(3, [&](World& world) {
    world.register_devices({"cuda:0"});
    world.begin_collective(0, record_of(world.rank() == 0 ? 0 : 1));
    if (world.rank() == 0) return std::this_thread::sleep_for(std::chrono::milliseconds(500));  // its position is told now and then
    const std::string verdict = comm_error_of([&] { world.gather("the votes", ""); });
    verdicts[static_cast<size_t>(world.rank())] = verdict;
    expect_all_calls_fail(world, verdict);
  });
  for (const size_t rank : {1, 2}) {
    expect_contains(verdicts[rank], "rank 0 (pid ");
    expect_contains(verdicts[rank], ") died: its connection closed without a word; its last known was collective 0 (all_reduce");
    expect_contains(verdicts[rank], "rank " + std::to_string(rank) + " has come to collective 1");
  }
}

TEST_F(WorldFailure, AFailureIsToldWithItsReason) {
  for (const int culprit : {0, 1, 2}) {
    SCOPED_TRACE(culprit);
    std::vector<std::string> verdicts(3);
    run_processes(3, [&](World& world) {
      world.register_devices({"cuda:0"});
      if (world.rank() == culprit) {
        world.begin_collective(0, record_of(7));
        world.fail("cuda:0: out of memory");
        EXPECT_FALSE(world.failure().empty()) << "it returns once the others were told";
      }
      verdicts[static_cast<size_t>(world.rank())] = comm_error_of([&] { world.gather("the votes", ""); });
      expect_all_calls_fail(world, verdicts[static_cast<size_t>(world.rank())]);
    });
    EXPECT_EQ(verdicts, std::vector<std::string>(3, verdicts[0]));
    expect_contains(verdicts[0], "rank " + std::to_string(culprit) + " (pid ");
    expect_contains(verdicts[0], "failed: cuda:0: out of memory; its last known was collective 7 (all_reduce of bucket 7");
  }
}

TEST_F(WorldFailure, WhoFailsMayEndAtOnceAndTheReasonStillArrives) {
  // The verdict goes out before the world of who found it goes.
  for (int i = 0; i < 20; ++i) {
    for (const int culprit : {0, 1}) {
      const MeetingPlace place;
      run_ranks(3, [&](int rank) {
        World world(process_options(rank, 3, place.init()));
        if (rank == culprit) return world.fail("planted");
        expect_contains(verdict_of(world), "rank " + std::to_string(culprit) + " (pid ");
        expect_contains(world.failure(), "failed: planted");
      });
    }
  }
}

TEST_F(WorldFailure, AFailureThatMayBeAnEchoWaitsForItsCause) {
  run_processes(3, [&](World& world) {
    if (world.rank() == 1) {
      world.gather("the start", "");
      return;  // dies
    }
    world.gather("the start", "");
    world.fail("NCCL: remote process exited", kPatientMs);
    note(world.rank(), world.failure());
  });
  expect_verdict(2, {"rank 1 (pid ", "died"});
}

TEST_F(WorldFailure, AnEchoWithoutCauseIsTheFailureInTheEnd) {
  run_processes(2, [&](World& world) {
    if (world.rank() == 1) world.fail("NCCL: unhandled system error", 200);
    note(world.rank(), verdict_of(world));
  });
  expect_verdict(2, {"rank 1 (pid ", "failed: NCCL: unhandled system error"});
}

TEST_F(WorldFailure, WhoBeginsAnotherCollectiveIsNamed) {
  run_processes(4, [&](World& world) {
    world.register_devices({"cuda:0", "cuda:1"});
    for (int device = 0; device < 2; ++device) {
      for (uint64_t i = 0; i < 3; ++i) world.begin_collective(device, record_of(i));
      world.begin_collective(device, record_of(3, world.rank() == 2 && device == 1 ? 99 : 1));
    }
    // Though nobody waits for it.
    note(world.rank(), verdict_of(world));
  });
  expect_verdict(4, {"rank 2 (pid ",
                     "), device cuda:1 began collective 3 (all_reduce of bucket 3, 4096 bytes, phase reduce, step 5), where ranks 0 to 3 "
                     "began collective 3",
                     "the same collectives in the same order"});
}

TEST_F(WorldFailure, ExchangesForDifferentPurposesEnd) {
  run_processes(2, [&](World& world) { note(world.rank(), comm_error_of([&] { world.gather(world.rank() == 0 ? "the plan" : "the votes", ""); })); });
  expect_verdict(2, {"came to exchange", "the plan", "the votes", "the same program"});
}

/// Three processes, of which one does not come while the others wait for it.
class LateProcess : public WorldFailure {
 protected:
  template <class Wait>
  void run(int late, const Wait& wait) {
    run_processes(
        3,
        [&](World& world) {
          world.register_devices({"cuda:0"});
          world.begin_collective(0, record_of(0));
          world.finish_collective(0);
          world.gather("a step", "");
          world.set_warm();
          if (world.rank() != late) wait(world);
          note(world.rank(), verdict_of(world));
        },
        {}, kImpatientMs);
  }
};

TEST_F(LateProcess, ThatDoesNotComeToAnExchange) {
  run(2, [](World& world) { comm_error_of([&] { world.gather("the votes", ""); }); });
  expect_verdict(3, {"rank 2 (pid ", "is late: others have come to exchange the votes, and it has not", "s in the exchange of the votes"});
}

TEST_F(LateProcess, MayBeRankZero) {
  run(0, [](World& world) { comm_error_of([&] { world.gather("the votes", ""); }); });
  expect_verdict(3, {"rank 0 (pid ", "is late: others have come to exchange the votes, and it has not"});
}

TEST_F(LateProcess, ThatDoesNotBeginACollective) {
  run(1, [](World& world) {
    world.begin_collective(0, record_of(1));
    const World::Waiting waiting(world, record_of(1).str());
    verdict_of(world);
  });
  expect_verdict(
      3, {"rank 1 (pid ", "is late: others have begun collective 1 (all_reduce of bucket 1, 4096 bytes, phase reduce, step 5), and it has not",
          "its last known was collective 0", "which it finished", "s in collective 1 (all_reduce"});
}

TEST_F(LateProcess, NobodyIsWhenAllWaitForEachOther) {
  run(-1, [](World& world) {
    world.begin_collective(0, record_of(1));
    const World::Waiting waiting(world, record_of(1).str());
    verdict_of(world);
  });
  expect_verdict(3, {"in collective 1", "every rank has begun", "the network between them may be broken"});
}

TEST_F(LateProcess, HasMoreTimeBeforeTheFirstStepIsDone) {
  constexpr int64_t kTimeoutMs = 3000;
  run_processes(
      2,
      [&](World& world) {
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5000));  // the verdict would be there by then
        world.gather("the first step", "");
        world.close();
      },
      {}, kTimeoutMs);
}

TEST_F(LateProcess, ThatComesInTimeIsNotJudgedLater) {
  // Waits that end, however often and long ago, are no lateness.
  run_processes(
      1,
      [&](World& world) {
        world.set_warm();
        for (int i = 0; i < 8; ++i) {
          { const World::Waiting waiting(world, "something"); }
          std::this_thread::sleep_for(std::chrono::milliseconds(kImpatientMs / 4));
        }
        EXPECT_EQ(world.failure(), "");
        world.close();
      },
      {}, kImpatientMs);
}

TEST_F(WorldFailure, AMemberThatIsSilentHangs) {
  const MeetingPlace place;
  run_ranks(3, [&](int rank) {
    if (rank == 1) {
      const FakeProcess silent = join_as(1, 3, place.path());
      // Its connection stays open until the others know.
      for (int i = 0; i < 6000 && noted() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    World world(process_options(rank, 3, place.init(), kSilentMs));
    world.set_warm();
    note(rank, comm_error_of([&] { world.gather("the votes", ""); }));
  });
  expect_verdict(2, {"rank 1 (fake) hangs: nothing was heard of it for ", "though its connection is open", "in the exchange of the votes"});
}

TEST_F(WorldFailure, ARankZeroThatIsSilentHangs) {
  const MeetingPlace place;
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      FakeProcess silent = lead_one(place.path());
      silent.send(world::Writer(world::MessageKind::beat).text("its last known was something"));
      for (int i = 0; i < 6000 && noted() < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    World world(process_options(rank, 2, place.init(), kSilentMs));
    world.set_warm();
    const std::string verdict = comm_error_of([&] { world.gather("the votes", ""); });
    note(rank, verdict);
    expect_all_calls_fail(world, verdict);
  });
  std::filesystem::remove(place.path());
  expect_verdict(1, {"rank 0 (fake) hangs: nothing was heard of it for ", "its last known was something"});
}

TEST_F(WorldFailure, WhatCannotBeReadIsBlamedOnWhoSentIt) {
  using world::MessageKind;
  using world::Writer;
  const std::vector<Writer> messages = {Writer(MessageKind::progress).number(0),
                                        Writer(MessageKind::gather).number(uint64_t{1}).number(uint64_t{1} << 60),
                                        Writer(MessageKind::devices).number(uint64_t{1} << 60)};
  for (const Writer& message : messages) {
    const MeetingPlace place;
    run_ranks(2, [&](int rank) {
      if (rank == 1) {
        FakeProcess member = join_as(1, 2, place.path());
        member.send(message);
        return;
      }
      World world(process_options(0, 2, place.init()));
      expect_contains(comm_error_of([&] { world.gather("the votes", ""); }), "rank 1 (fake) failed: it sent what cannot be read");
    });
  }
}

TEST_F(WorldFailure, AMessageOfAnImpossibleSizeIsBlamedOnWhoSentIt) {
  const MeetingPlace place;
  run_ranks(2, [&](int rank) {
    if (rank == 1) {
      const FakeProcess member = join_as(1, 2, place.path());
      const std::string garbage(64, '\xee');
      EXPECT_EQ(::write(member.connection.descriptor(), garbage.data(), garbage.size()), 64);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    World world(process_options(0, 2, place.init()));
    expect_contains(verdict_of(world), "rank 1 (fake) failed: it sent what cannot be read: what came over a connection");
  });
}

TEST_F(WorldFailure, AVerdictThatRankZeroSentBeforeItWentIsBelieved) {
  const MeetingPlace place;
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      FakeProcess hub = lead_one(place.path());
      hub.send(world::Writer(world::MessageKind::verdict).text("rank 7 is late"));
      return;
    }
    World world(process_options(1, 2, place.init()));
    EXPECT_EQ(verdict_of(world), "rank 7 is late");
  });
  std::filesystem::remove(place.path());
}

TEST_F(WorldFailure, AHandlerThatWasTakenAwayIsNotCalled) {
  run_processes(2, [&](World& world) {
    std::atomic<int> calls{0};
    const uint64_t gone = world.on_failure([&](const std::string&) { calls += 100; });
    world.on_failure([&](const std::string&) { ++calls; });
    world.remove_handler(gone);
    world.remove_handler(gone);
    world.remove_handler(0);
    world.broadcast("both have their handlers", "");
    if (world.rank() == 1) world.fail("planted");
    verdict_of(world);
    while (calls == 0) std::this_thread::yield();
    EXPECT_EQ(calls, 1);
  });
}

TEST_F(WorldFailure, HandlersMayTakeOneAnotherAndThemselvesAway) {
  run_processes(1, [&](World& world) {
    std::atomic<int> first{0}, second{0}, third{0}, late{0};
    uint64_t own = 0, next = 0;
    own = world.on_failure([&](const std::string&) {
      ++first;
      world.remove_handler(own);
      world.remove_handler(next);
      world.on_failure([&](const std::string&) { ++late; });
      EXPECT_FALSE(world.failure().empty());
      world.fail("again");
    });
    next = world.on_failure([&](const std::string&) { ++second; });
    world.on_failure([&](const std::string&) {
      ++third;
      throw std::runtime_error("a handler must not");
    });
    std::atomic<bool> last{false};
    world.on_failure([&](const std::string&) { last = true; });
    world.fail("planted");
    while (!last) std::this_thread::yield();
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 0);
    EXPECT_EQ(third, 1);
    EXPECT_EQ(late, 1);
  });
}

TEST_F(WorldFailure, AHandlerIsOverOnceItIsTakenAway) {
  run_processes(1, [&](World& world) {
    std::atomic<bool> begun{false}, over{false};
    const uint64_t slow = world.on_failure([&](const std::string&) {
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      over = true;
    });
    world.fail("planted");
    while (!begun) std::this_thread::yield();
    world.remove_handler(slow);
    EXPECT_TRUE(over);
  });
}

using WorldFailureDeathTest = WorldFailure;

TEST_F(WorldFailureDeathTest, AProcessThatDoesNotEndByItselfIsEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    WorldOptions options;
    options.exit_after_ms = 200;
    World world(options);
    world.on_failure([](const std::string&) { pause(); });  // as an abort that never comes back
    world.fail("planted");
    while (true) pause();
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(1), "");
}

TEST_F(WorldFailure, AProcessThatEndsInTimeIsNotEnded) {
  {
    WorldOptions options;
    options.exit_after_ms = 300;
    World world(options);
    world.fail("planted");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

}  // namespace
}  // namespace vitrine::test
