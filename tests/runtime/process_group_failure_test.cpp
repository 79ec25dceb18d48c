// SPDX-License-Identifier: Apache-2.0
// A process of a process group dies, hangs, is late, fails or deviates from the others: all of them learn which one,
// and pending calls end.
#include <atomic>
#include <filesystem>
#include <mutex>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/process_group/process_group.h"
#include "tests/runtime/fake_process.h"
#include "tests/runtime/processes.h"
#include "tests/runtime/upper_settings.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

// A timeout for tests that want a process to be late.
constexpr int64_t kFailureTimeoutMs = 400;
// The same, long enough for a silence to be detected.
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

/// Waits for the failure of the process group.
std::string verdict_of(const ProcessGroup& process_group) {
  while (process_group.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return process_group.failure();
}

class ProcessGroupFailure : public ::testing::Test {
 protected:
  /// Records what a process learned; the others must have learned the same.
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
  /// The process group has failed: every call ends with this reason.
  static void expect_all_calls_fail(ProcessGroup& process_group, const std::string& verdict) {
    EXPECT_EQ(process_group.failure(), verdict);
    EXPECT_EQ(comm_error_of([&] { process_group.gather("more", ""); }), verdict);
    EXPECT_EQ(comm_error_of([&] { process_group.broadcast("more", ""); }), verdict);
    EXPECT_EQ(comm_error_of([&] { process_group.register_devices({"cpu:0"}); }), verdict);
    EXPECT_EQ(comm_error_of([&] { process_group.close(); }), verdict);
    process_group.fail("another reason");
    EXPECT_EQ(process_group.failure(), verdict);
    std::atomic<bool> called{false};
    process_group.on_failure([&](const std::string& reason) {
      EXPECT_EQ(reason, verdict);
      called = true;
    });
    while (!called) std::this_thread::yield();  // immediately, or while the others are being called
  }

 private:
  std::mutex mutex_;
  std::string verdict_;
  int noted_ = 0;
  LeavesNothingBehind check_;
};

TEST_F(ProcessGroupFailure, ADeadRankIsReportedToAllWaitingRanks) {
  run_processes(4, [&](ProcessGroup& process_group) {
    if (process_group.rank() == 2) return;  // its process group is destroyed without close()
    std::atomic<int> calls{0};
    std::string reported;
    process_group.on_failure([&](const std::string& reason) {
      reported = reason;
      ++calls;
    });
    const std::string verdict = comm_error_of([&] { process_group.gather("the votes", ""); });
    note(process_group.rank(), verdict);
    expect_all_calls_fail(process_group, verdict);
    while (calls == 0) std::this_thread::yield();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(reported, verdict);
  });
  expect_verdict(3, {"rank 2 (pid ", ") died: its connection closed unexpectedly; it had begun no collective",
                     "its last exchange was for the machine it runs on"});
}

TEST_F(ProcessGroupFailure, AReasonKeepsItsSettingsOnAllRanks) {
  run_processes(3, [&](ProcessGroup& process_group) {
    if (process_group.rank() == 1)
      process_group.fail({"too small; reserve more with ", propose(kWorkspaceBytes, "8MiB")});
    note(process_group.rank(), verdict_of(process_group));
    try {
      process_group.gather("the votes", "");
      ADD_FAILURE() << "the process group has failed";
    } catch (const CommError& error) {
      using Parts = std::vector<Reason::Part>;
      EXPECT_EQ(error.reason().parts(Reason::Part::Kind::proposed), (Parts{propose(kWorkspaceBytes, "8MiB")}));
    }
  });
  expect_verdict(3, {"rank 1 (pid ", ") failed: too small; reserve more with EngineConfig::workspace_bytes 8MiB; "});
}

TEST_F(ProcessGroupFailure, ADeadRankIsDetectedWhenNoRankWaits) {
  run_processes(3, [&](ProcessGroup& process_group) {
    process_group.register_devices({"cuda:0"});
    process_group.begin_collective(0, record_of(0));
    process_group.finish_collective(0);
    process_group.gather("a step", "");
    if (process_group.rank() != 1) process_group.begin_collective(0, record_of(1));
    process_group.gather("another step", "");
    if (process_group.rank() == 1) return;
    note(process_group.rank(), verdict_of(process_group));
  });
  expect_verdict(
      2,
      {"rank 1 (pid ", "died",
       "its last known was collective 0 (all_reduce of bucket 0, 4096 bytes, phase reduce, step 5), which it finished",
       "others have reached collective 1 (all_reduce of bucket 1"});
}

TEST_F(ProcessGroupFailure, TheOtherRanksDetectThatRankZeroDied) {
  std::vector<std::string> verdicts(3);
  run_processes(3, [&](ProcessGroup& process_group) {
    process_group.register_devices({"cuda:0"});
    process_group.begin_collective(0, record_of(process_group.rank() == 0 ? 0 : 1));
    if (process_group.rank() == 0)
      return std::this_thread::sleep_for(std::chrono::milliseconds(500));  // its progress is reported from time to time
    const std::string verdict = comm_error_of([&] { process_group.gather("the votes", ""); });
    verdicts[static_cast<size_t>(process_group.rank())] = verdict;
    expect_all_calls_fail(process_group, verdict);
  });
  for (const size_t rank : {1, 2}) {
    expect_contains(verdicts[rank], "rank 0 (pid ",
                    ") died: its connection closed unexpectedly; its last known was collective 0 (all_reduce",
                    "rank " + std::to_string(rank) + " has reached collective 1");
  }
}

TEST_F(ProcessGroupFailure, AFailureIsReportedWithItsReason) {
  for (const int culprit : {0, 1, 2}) {
    SCOPED_TRACE(culprit);
    std::vector<std::string> verdicts(3);
    run_processes(3, [&](ProcessGroup& process_group) {
      process_group.register_devices({"cuda:0"});
      if (process_group.rank() == culprit) {
        process_group.begin_collective(0, record_of(7));
        process_group.fail("cuda:0: out of memory");
        EXPECT_FALSE(process_group.failure().empty()) << "it returns after the others were notified";
      }
      verdicts[static_cast<size_t>(process_group.rank())] =
          comm_error_of([&] { process_group.gather("the votes", ""); });
      expect_all_calls_fail(process_group, verdicts[static_cast<size_t>(process_group.rank())]);
    });
    EXPECT_EQ(verdicts, std::vector<std::string>(3, verdicts[0]));
    expect_contains(verdicts[0], "rank " + std::to_string(culprit) + " (pid ",
                    "failed: cuda:0: out of memory; its last known was collective 7 (all_reduce of bucket 7");
  }
}

TEST_F(ProcessGroupFailure, AReasonArrivesEvenIfItsRankExitsAtOnce) {
  // The verdict is sent before the process that detected the failure exits.
  for (int i = 0; i < 20; ++i) {
    for (const int culprit : {0, 1}) {
      const RendezvousPlace place;
      run_ranks(3, [&](int rank) {
        ProcessGroup process_group(process_options(rank, 3, place.init()));
        if (rank == culprit) return process_group.fail("planted");
        expect_contains(verdict_of(process_group), "rank " + std::to_string(culprit) + " (pid ");
        expect_contains(process_group.failure(), "failed: planted");
      });
    }
  }
}

TEST_F(ProcessGroupFailure, ASecondaryFailureWaitsForItsCause) {
  run_processes(3, [&](ProcessGroup& process_group) {
    if (process_group.rank() == 1) {
      process_group.gather("the start", "");
      return;  // dies
    }
    process_group.gather("the start", "");
    process_group.fail("NCCL: remote process exited", kPatientMs);
    note(process_group.rank(), process_group.failure());
  });
  expect_verdict(2, {"rank 1 (pid ", "died"});
}

TEST_F(ProcessGroupFailure, ASecondaryFailureWithoutACauseIsReportedInTheEnd) {
  run_processes(2, [&](ProcessGroup& process_group) {
    if (process_group.rank() == 1) process_group.fail("NCCL: unhandled system error", 200);
    note(process_group.rank(), verdict_of(process_group));
  });
  expect_verdict(2, {"rank 1 (pid ", "failed: NCCL: unhandled system error"});
}

TEST_F(ProcessGroupFailure, ARankThatBeginsADifferentCollectiveIsNamed) {
  run_processes(4, [&](ProcessGroup& process_group) {
    process_group.register_devices({"cuda:0", "cuda:1"});
    for (int device = 0; device < 2; ++device) {
      for (uint64_t i = 0; i < 3; ++i) process_group.begin_collective(device, record_of(i));
      process_group.begin_collective(device, record_of(3, process_group.rank() == 2 && device == 1 ? 99 : 1));
    }
    // Although no process waits for it.
    note(process_group.rank(), verdict_of(process_group));
  });
  expect_verdict(4, {"rank 2 (pid ",
                     "), device cuda:1 began collective 3 (all_reduce of bucket 3, 4096 bytes, phase reduce, step 5), "
                     "where ranks 0 to 3 "
                     "began collective 3",
                     "the same collectives in the same order"});
}

TEST_F(ProcessGroupFailure, ExchangesForDifferentPurposesFail) {
  run_processes(2, [&](ProcessGroup& process_group) {
    note(process_group.rank(),
         comm_error_of([&] { process_group.gather(process_group.rank() == 0 ? "the plan" : "the votes", ""); }));
  });
  expect_verdict(2, {"reached exchange", "the plan", "the votes", "the same program"});
}

/// Three processes, one of which does not arrive while the others wait for it.
class LateProcess : public ProcessGroupFailure {
 protected:
  template <class Wait>
  void run(int late, const Wait& wait) {
    run_processes(
        3,
        [&](ProcessGroup& process_group) {
          process_group.register_devices({"cuda:0"});
          process_group.begin_collective(0, record_of(0));
          process_group.finish_collective(0);
          process_group.gather("a step", "");
          process_group.set_warm();
          if (process_group.rank() != late) wait(process_group);
          note(process_group.rank(), verdict_of(process_group));
        },
        {}, kFailureTimeoutMs);
  }
};

TEST_F(LateProcess, IsNamedWhenItMissesAnExchange) {
  run(2, [](ProcessGroup& process_group) { comm_error_of([&] { process_group.gather("the votes", ""); }); });
  expect_verdict(3, {"rank 2 (pid ", "is late: others have reached exchange the votes, and it has not",
                     "s in the exchange of the votes"});
}

TEST_F(LateProcess, IsNamedWhenItIsRankZero) {
  run(0, [](ProcessGroup& process_group) { comm_error_of([&] { process_group.gather("the votes", ""); }); });
  expect_verdict(3, {"rank 0 (pid ", "is late: others have reached exchange the votes, and it has not"});
}

TEST_F(LateProcess, IsNamedWhenItDoesNotBeginACollective) {
  run(1, [](ProcessGroup& process_group) {
    process_group.begin_collective(0, record_of(1));
    const ProcessGroup::Waiting waiting(process_group, record_of(1).str());
    verdict_of(process_group);
  });
  expect_verdict(3, {"rank 1 (pid ",
                     "is late: others have begun collective 1 (all_reduce of bucket 1, 4096 bytes, phase reduce, step "
                     "5), and it has not",
                     "its last known was collective 0", "which it finished", "s in collective 1 (all_reduce"});
}

TEST_F(LateProcess, IsNotNamedWhenAllWaitForEachOther) {
  run(-1, [](ProcessGroup& process_group) {
    process_group.begin_collective(0, record_of(1));
    const ProcessGroup::Waiting waiting(process_group, record_of(1).str());
    verdict_of(process_group);
  });
  expect_verdict(3, {"in collective 1", "every rank has begun", "the network between them may be broken"});
}

TEST_F(LateProcess, HasMoreTimeBeforeTheFirstStepIsDone) {
  constexpr int64_t kTimeoutMs = 3000;
  run_processes(
      2,
      [&](ProcessGroup& process_group) {
        if (process_group.rank() == 1)
          std::this_thread::sleep_for(std::chrono::milliseconds(5000));  // the verdict would have arrived by then
        process_group.gather("the first step", "");
        process_group.close();
      },
      {}, kTimeoutMs);
}

TEST_F(LateProcess, IsForgivenWhenItArrivesInTime) {
  // Waits that end, however often and long ago, do not count as late.
  run_processes(
      1,
      [&](ProcessGroup& process_group) {
        process_group.set_warm();
        for (int i = 0; i < 8; ++i) {
          { const ProcessGroup::Waiting waiting(process_group, "something"); }
          std::this_thread::sleep_for(std::chrono::milliseconds(kFailureTimeoutMs / 4));
        }
        EXPECT_EQ(process_group.failure(), "");
        process_group.close();
      },
      {}, kFailureTimeoutMs);
}

TEST_F(ProcessGroupFailure, ASilentMemberIsReportedAsHanging) {
  const RendezvousPlace place;
  run_ranks(3, [&](int rank) {
    if (rank == 1) {
      const FakeProcess silent = join_as(1, 3, place.path());
      // Its connection stays open until the others know.
      for (int i = 0; i < 6000 && noted() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    ProcessGroup process_group(process_options(rank, 3, place.init(), kSilentMs));
    process_group.set_warm();
    note(rank, comm_error_of([&] { process_group.gather("the votes", ""); }));
  });
  expect_verdict(2, {"rank 1 (fake) hangs: it has sent nothing for ", "but its connection is open",
                     "in the exchange of the votes"});
}

TEST_F(ProcessGroupFailure, ASilentRankZeroIsReportedAsHanging) {
  const RendezvousPlace place;
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      FakeProcess silent = lead_one(place.path());
      silent.send(process_group::Beat{{}, "its last known was something"});
      for (int i = 0; i < 6000 && noted() < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    ProcessGroup process_group(process_options(rank, 2, place.init(), kSilentMs));
    process_group.set_warm();
    const std::string verdict = comm_error_of([&] { process_group.gather("the votes", ""); });
    note(rank, verdict);
    expect_all_calls_fail(process_group, verdict);
  });
  std::filesystem::remove(place.path());
  expect_verdict(1, {"rank 0 (fake) hangs: it has sent nothing for ", "its last known was something"});
}

TEST_F(ProcessGroupFailure, AnUnreadableMessageIsBlamedOnItsSender) {
  const std::string gather = process_group::encode(process_group::Gather{1, "the votes", {"mine"}});
  const std::vector<std::string> messages = {gather.substr(0, gather.size() - 1), gather + "x", std::string(1, '\xff')};
  for (const std::string& message : messages) {
    const RendezvousPlace place;
    run_ranks(2, [&](int rank) {
      if (rank == 1) {
        FakeProcess member = join_as(1, 2, place.path());
        member.connection.send(message);
        return;
      }
      ProcessGroup process_group(process_options(0, 2, place.init()));
      expect_contains(comm_error_of([&] { process_group.gather("the votes", ""); }),
                      "rank 1 (fake) failed: it sent an invalid message");
    });
  }
}

TEST_F(ProcessGroupFailure, AMessageOfAnImpossibleSizeIsBlamedOnItsSender) {
  const RendezvousPlace place;
  run_ranks(2, [&](int rank) {
    if (rank == 1) {
      const FakeProcess member = join_as(1, 2, place.path());
      const std::string garbage(64, '\xee');
      EXPECT_EQ(::write(member.connection.descriptor(), garbage.data(), garbage.size()), 64);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    ProcessGroup process_group(process_options(0, 2, place.init()));
    expect_contains(verdict_of(process_group),
                    "rank 1 (fake) failed: it sent an invalid message: data on a connection");
  });
}

TEST_F(ProcessGroupFailure, AVerdictThatRankZeroSentBeforeItExitedCounts) {
  const RendezvousPlace place;
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      FakeProcess server = lead_one(place.path());
      server.send(process_group::Verdict{"rank 7 is late"});
      return;
    }
    ProcessGroup process_group(process_options(1, 2, place.init()));
    EXPECT_EQ(verdict_of(process_group), "rank 7 is late");
  });
  std::filesystem::remove(place.path());
}

TEST_F(ProcessGroupFailure, ARemovedHandlerIsNotCalled) {
  run_processes(2, [&](ProcessGroup& process_group) {
    std::atomic<int> calls{0};
    const uint64_t gone = process_group.on_failure([&](const std::string&) { calls += 100; });
    process_group.on_failure([&](const std::string&) { ++calls; });
    process_group.remove_handler(gone);
    process_group.remove_handler(gone);
    process_group.remove_handler(0);
    process_group.broadcast("both have their handlers", "");
    if (process_group.rank() == 1) process_group.fail("planted");
    verdict_of(process_group);
    while (calls == 0) std::this_thread::yield();
    EXPECT_EQ(calls, 1);
  });
}

TEST_F(ProcessGroupFailure, HandlersMayRemoveEachOtherAndThemselves) {
  run_processes(1, [&](ProcessGroup& process_group) {
    std::atomic<int> first{0}, second{0}, third{0}, late{0};
    uint64_t own = 0, next = 0;
    own = process_group.on_failure([&](const std::string&) {
      ++first;
      process_group.remove_handler(own);
      process_group.remove_handler(next);
      process_group.on_failure([&](const std::string&) { ++late; });
      EXPECT_FALSE(process_group.failure().empty());
      process_group.fail("again");
    });
    next = process_group.on_failure([&](const std::string&) { ++second; });
    process_group.on_failure([&](const std::string&) {
      ++third;
      throw std::runtime_error("a handler must not");
    });
    std::atomic<bool> last{false};
    process_group.on_failure([&](const std::string&) { last = true; });
    process_group.fail("planted");
    while (!last) std::this_thread::yield();
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 0);
    EXPECT_EQ(third, 1);
    EXPECT_EQ(late, 1);
  });
}

TEST_F(ProcessGroupFailure, RemovingAHandlerWaitsUntilItReturns) {
  run_processes(1, [&](ProcessGroup& process_group) {
    std::atomic<bool> begun{false}, over{false};
    const uint64_t slow = process_group.on_failure([&](const std::string&) {
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      over = true;
    });
    process_group.fail("planted");
    while (!begun) std::this_thread::yield();
    process_group.remove_handler(slow);
    EXPECT_TRUE(over);
  });
}

using ProcessGroupFailureDeathTest = ProcessGroupFailure;

TEST_F(ProcessGroupFailureDeathTest, AProcessThatDoesNotExitIsTerminated) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    ProcessGroupOptions options;
    options.exit_after_ms = 200;
    ProcessGroup process_group(options);
    process_group.on_failure([](const std::string&) { pause(); });  // like an abort that never returns
    process_group.fail("planted");
    while (true) pause();
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(1), "");
}

/// One descriptor is left, for the event that wakes the process group's thread; epoll_create1 finds none.
TEST_F(ProcessGroupFailure, AFailedEpollIsAnErrorThatNamesTheLimit) {
  rlimit before{}, few{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(lowest);
  few = before;
  few.rlim_cur = static_cast<rlim_t>(lowest) + 1;
  setrlimit(RLIMIT_NOFILE, &few);
  const std::string message = comm_error_of([] { const ProcessGroup process_group{ProcessGroupOptions{}}; });
  setrlimit(RLIMIT_NOFILE, &before);
  expect_contains(message,
                  "cannot watch the connections to other processes: Too many open files: this process may have " +
                      std::to_string(few.rlim_cur) + " file descriptors; raise their number with ulimit -n");
  const ProcessGroup works{ProcessGroupOptions{}};
}

TEST_F(ProcessGroupFailure, AProcessThatClosesInTimeIsNotTerminated) {
  {
    ProcessGroupOptions options;
    options.exit_after_ms = 300;
    ProcessGroup process_group(options);
    process_group.fail("planted");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

}  // namespace
}  // namespace vitrine::test
