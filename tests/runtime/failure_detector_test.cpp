// SPDX-License-Identifier: Apache-2.0
// Which process is the culprit when the processes of a process group stop progressing.
#include "runtime/process_group/failure_detector.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"

namespace vitrine::process_group {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

CollectiveRecord record(uint64_t sequence, uint64_t signature, const std::string& label = "bucket 3") {
  CollectiveRecord r;
  r.sequence = sequence;
  r.signature = signature;
  r.operation = "all_reduce";
  r.label = label;
  r.phase = "reduce";
  r.step = 5;
  r.bytes = 4096;
  return r;
}

/// A complete process group in which every process has the same number of devices.
class FailureDetectorTest : public ::testing::Test {
 protected:
  void open(int size, int devices = 1) {
    detector = FailureDetector(size);
    for (int rank = 0; rank < size; ++rank) {
      detector.join(rank, "rank " + std::to_string(rank) + " (pid 7" + std::to_string(rank) + " on node1)", 0);
      std::vector<std::string> names;
      for (int d = 0; d < devices; ++d) names.push_back("cuda:" + std::to_string(d));
      detector.set_devices(rank, names);
    }
  }
  void begin(int rank, const CollectiveRecord& r, int device = 0) { detector.progress(rank, device, 0, {&r, 1}); }
  void finish(int rank, uint64_t count, int device = 0) { detector.progress(rank, device, count, {}); }
  void begin_all(const CollectiveRecord& r) {
    for (int rank = 0; rank < detector.size(); ++rank) begin(rank, r);
  }
  /// All except `silent` send signs of life until what is overdue or lost at `from_ns` has been judged.
  void judge(int64_t from_ns, int silent = -1) {
    for (int64_t now_ns = from_ns; now_ns <= from_ns + 2 * kSecond; now_ns += kSecond / 5) {
      for (int rank = 0; rank < detector.size(); ++rank) {
        if (rank != silent) detector.hear(rank, now_ns);
      }
      tick(now_ns);
    }
  }
  void tick(int64_t now_ns) {
    using Silence = FailureDetector::Silence;
    detector.tick(now_ns, [this](int rank) {
      return rank == starved ? Silence::kStarved : rank == cut_off ? Silence::kUnreachable : Silence::kHanging;
    });
  }
  void expect_verdict(std::initializer_list<const char*> parts) {
    for (const char* part : parts) expect_contains(detector.verdict(), part);
  }

  /// Judges until there is a verdict; every rank sends signs of life, and `rank` works, or its data moves, for so many
  /// seconds. Returns the notices.
  std::vector<std::string> judge_at_work(int rank, Activity of_a_tick, int seconds) {
    std::vector<std::string> notices;
    Activity sum;
    for (int64_t ticks = 0; ticks < 1000 && detector.verdict().empty(); ++ticks) {
      if (ticks < 5 * seconds) {
        sum.processor_ns += of_a_tick.processor_ns;
        sum.transfers += of_a_tick.transfers;
      }
      time_ns += kSecond / 5;
      for (int r = 0; r < detector.size(); ++r) detector.hear(r, time_ns);
      detector.set_activity(rank, sum);
      tick(time_ns);
      if (const Reason notice = detector.take_notice(); !notice.empty()) notices.push_back(notice);
    }
    return notices;
  }

  FailureDetector detector{1};
  int cut_off = -1;  // a rank whose machine acknowledges nothing
  int starved = -1;  // a rank that waits for a processor
  int64_t time_ns = kSecond;
};

TEST_F(FailureDetectorTest, NamesTheRanksThatHaveNotJoined) {
  FailureDetector r(4);
  r.join(0, "rank 0", 0);
  r.join(2, "rank 2", 0);
  EXPECT_FALSE(r.complete());
  EXPECT_EQ(r.missing(), "ranks 1, 3");
  r.join(2, "rank 2", 0);  // again
  r.join(3, "rank 3", 0);
  EXPECT_EQ(r.missing(), "rank 1");
  r.join(1, "rank 1", 0);
  EXPECT_TRUE(r.complete());
  r.leave(3);
  r.leave(3);
  EXPECT_FALSE(r.complete());
  EXPECT_EQ(r.missing(), "rank 3");
}

TEST_F(FailureDetectorTest, EqualCollectivesInAnyOrderOfArrivalAreNoFailure) {
  open(3, 2);
  for (uint64_t sequence = 0; sequence < 20; ++sequence) {
    for (int place = 0; place < 6; ++place) {
      const int at = static_cast<int>((static_cast<uint64_t>(place) * 5 + sequence) % 6);
      begin(at / 2, record(sequence, 100 + sequence), at % 2);
    }
  }
  // One that is ahead is no failure either.
  begin(2, record(20, 1), 1);
  begin(2, record(21, 2), 1);
  judge(0);
  EXPECT_EQ(detector.verdict(), "");
}

TEST_F(FailureDetectorTest, NamesTheDeviatingRankAmongThousands) {
  open(3000);
  for (uint64_t sequence = 0; sequence < 50; ++sequence) begin_all(record(sequence, 100 + sequence));
  EXPECT_EQ(detector.verdict(), "");
  for (int rank = 0; rank < 3000; ++rank)
    begin(rank, record(50, rank == 1234 ? 7 : 8, rank == 1234 ? "bucket 9" : "bucket 3"));
  expect_verdict({"rank 1234 (pid 71234 on node1) began collective 50 (all_reduce of bucket 9",
                  "where ranks 0 to 1233, 1235 to 2999 began collective 50"});
}

TEST_F(FailureDetectorTest, ReportsADeathBeforeTheFirstCollective) {
  open(3);
  detector.gather(1, 0, "the plan", "p");
  detector.lost(1, kSecond);
  EXPECT_EQ(detector.verdict(), "") << "others may still report their progress";
  judge(kSecond);
  expect_verdict({"rank 1 (pid 71 on node1) died: its connection closed unexpectedly", "it had begun no collective",
                  "its last exchange was for the plan"});
}

TEST_F(FailureDetectorTest, ADeathDuringACollectiveIsReportedWithItsPosition) {
  open(4);
  begin_all(record(16, 1, "bucket 2"));
  for (int rank = 0; rank < 4; ++rank) finish(rank, 1);
  begin(2, record(17, 2));
  detector.lost(2, kSecond);
  begin(0, record(17, 2));  // reported after the death was detected
  begin(0, record(18, 3, "bucket 4"));
  judge(kSecond);
  expect_verdict({"rank 2 (pid 72 on node1) died",
                  "its last known was collective 17 (all_reduce of bucket 3, 4096 bytes, phase reduce, step 5)",
                  "which it did not finish", "others have reached collective 18 (all_reduce of bucket 4"});
}

TEST_F(FailureDetectorTest, ADeathIsReportedWithTheLastFinishedCollective) {
  open(2);
  begin_all(record(0, 1));
  finish(1, 1);
  detector.lost(1, kSecond);
  judge(kSecond);
  expect_verdict({"rank 1", "collective 0", "which it finished"});
}

TEST_F(FailureDetectorTest, AnUnfinishedCollectiveIsNotReportedAsFinished) {
  open(2);
  CollectiveRecord r = record(0, 1);
  r.end_is_reported = false;
  begin(1, r);
  EXPECT_EQ(detector.position(1), "its last known was " + r.str());
}

TEST_F(FailureDetectorTest, ARankMayDisconnectAfterItsGoodbye) {
  open(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(detector.all_said_bye());
    detector.bye(rank);
  }
  EXPECT_TRUE(detector.all_said_bye());
  detector.lost(1, kSecond);
  judge(kSecond);
  EXPECT_EQ(detector.verdict(), "");
}

TEST_F(FailureDetectorTest, ASilentRankThatOthersWaitForHangs) {
  open(4);
  begin_all(record(0, 1));
  begin(0, record(1, 2, "bucket 4"));
  detector.overdue(0, {"collective 1", 3000}, 10 * kSecond);
  detector.overdue(3, {"the exchange of votes", 3000}, 10 * kSecond);
  judge(10 * kSecond, 2);
  expect_verdict({"rank 2 (pid 72 on node1) hangs: it has sent nothing for", "collective 0 (all_reduce of bucket 3",
                  "others have reached collective 1 (all_reduce of bucket 4",
                  "rank 0 (pid 70 on node1) has waited 3.0 s in collective 1"});
}

TEST_F(FailureDetectorTest, NamesTheRankThatWasSilentFirst) {
  open(4);
  for (int rank = 0; rank < 4; ++rank)
    detector.hear(rank, rank == 3 ? 2 * kSecond : rank == 1 ? 4 * kSecond : 10 * kSecond);
  detector.overdue(0, {"x", 3000}, 10 * kSecond);
  tick(10 * kSecond + FailureDetector::kJudgeAfterNs);
  expect_verdict({"rank 3 (pid 73 on node1) hangs"});
}

TEST_F(FailureDetectorTest, ARankThatCannotBeReachedIsNotSaidToHang) {
  open(4);
  cut_off = 2;
  detector.overdue(1, {"collective 1", 3000}, 10 * kSecond);
  judge(10 * kSecond, 2);
  expect_verdict({"no messages between rank 0 (pid 70 on node1) and rank 2 (pid 72 on node1) for ", "network"});
  expect_lacks(detector.verdict(), "hangs");
}

TEST_F(FailureDetectorTest, ASilentRankThatWaitsForAProcessorIsSlow) {
  open(3);
  starved = 2;
  detector.overdue(1, {"collective 1", 3000}, 10 * kSecond);
  judge(10 * kSecond, 2);
  EXPECT_TRUE(detector.verdict().empty());
  expect_contains(detector.take_notice(),
                  "rank 2 (pid 72 on node1) is slow, not stuck: others wait for it, and it waits "
                  "for a processor; waiting up to 15 s, longer if it gets little");
  for (int64_t now_ns = 13 * kSecond; detector.verdict().empty(); now_ns += kSecond / 2) {
    ASSERT_LT(now_ns, 120 * kSecond);
    for (const int rank : {0, 1}) detector.hear(rank, now_ns);
    tick(now_ns);
    EXPECT_TRUE(detector.verdict().empty() || now_ns > 80 * kSecond);  // kPatienceWhileStarved times 3 s
  }
  expect_verdict({"rank 2 (pid 72 on node1) hangs"});
}

TEST_F(FailureDetectorTest, WhenAllOthersAreSilentRankZeroIsTheLikelierCause) {
  for (const int cut : {-1, 2}) {
    open(4);
    cut_off = cut;
    detector.overdue(0, {"collective 1", 3000}, 10 * kSecond);
    tick(10 * kSecond);
    tick(10 * kSecond + FailureDetector::kJudgeAfterNs);
    expect_verdict({"rank 0 (pid 70 on node1) receives nothing: all 3 other ranks have been silent for up to 11.0 s",
                    "the likelier cause is rank 0's own network", "has waited 3.0 s in collective 1"});
  }
}

TEST_F(FailureDetectorTest, ARankThatHeardNothingFromRankZeroAndExitedDidNotDie) {
  open(3);
  detector.overdue(2, {"the votes", 3000, false, 2600}, kSecond);
  detector.lost(2, kSecond);
  judge(kSecond);
  expect_verdict({"no messages between rank 0 (pid 70 on node1) and rank 2 (pid 72 on node1) for 2.6 s"});
  expect_lacks(detector.verdict(), "died");
}

TEST_F(FailureDetectorTest, ARankWhoseProcessorTimeAdvancesIsSlow) {
  constexpr int kTimeoutMs = 4000;
  constexpr int64_t kMs = 1'000'000;
  // It waits once for each judgement that saw work. Five times the deadline has passed at the end, more for a rank that
  // has had less processor time than the deadline, at most 25 times.
  struct Case {
    int works_s;
    int64_t ms_of_a_tick;  // a fifth of a second
    int deadlines;
  };
  for (const auto& [works_s, ms_of_a_tick, deadlines] :
       {Case{0, 0, 1}, {7, 10, 3}, {1000, 100, 5}, {1000, 10, 21}, {1000, 2, 25}}) {
    open(3);
    time_ns = kSecond;
    for (const int rank : {0, 1}) begin(rank, record(0, 1));
    detector.overdue(1, {"collective 0", kTimeoutMs}, kSecond);
    const auto notices = judge_at_work(2, {.processor_ns = ms_of_a_tick * kMs}, works_s);
    expect_verdict({"rank 2 (pid 72 on node1) is late: others have begun collective 0"});
    if (works_s == 0) {
      EXPECT_TRUE(notices.empty());
      EXPECT_LE(time_ns, 3 * kSecond);
      continue;
    }
    ASSERT_EQ(notices.size(), 1U);
    expect_contains(notices[0], "rank 2 (pid 72 on node1) is slow, not stuck", "processor time", "up to 20 s");
    EXPECT_NEAR(static_cast<double>(time_ns) / kSecond, 2.0 + (deadlines - 1) * kTimeoutMs / 1000.0, 0.5);
    if (works_s > 7) {
      const std::string waited = fmt::format("has waited {}.0 s", deadlines * kTimeoutMs / 1000);
      expect_verdict({"although its processor time advances", waited.c_str()});
    }
  }
}

TEST_F(FailureDetectorTest, ARankThatWorksNowAndThenIsSlow) {
  for (const auto& [worked_s, end_s] : {std::pair{2, 6}, std::pair{4, 12}}) {
    open(2);
    time_ns = 0;
    begin(0, record(0, 1));
    detector.overdue(0, {"collective 0", 6000}, 5 * kSecond);
    judge_at_work(1, {.processor_ns = 1'000'000}, worked_s);  // in each fifth of a second
    expect_verdict({"rank 1 (pid 71 on node1) is late"});
    EXPECT_NEAR(static_cast<double>(time_ns) / kSecond, end_s, 0.5) << worked_s;
  }
}

TEST_F(FailureDetectorTest, ACollectiveWhoseDataMovesIsSlow) {
  open(2);
  begin_all(record(0, 1));
  detector.overdue(1, {"collective 0", 4000}, kSecond);
  const auto notices = judge_at_work(0, {.transfers = 1}, 7);
  expect_verdict({"every rank has begun"});
  ASSERT_EQ(notices.size(), 1U);
  expect_contains(notices[0], "rank 1 (pid 71 on node1) has waited 4.0 s in collective 0, which is slow, not stuck");
  EXPECT_NEAR(static_cast<double>(time_ns) / kSecond, 10, 0.5);
}

TEST_F(FailureDetectorTest, ACollectiveWhoseDataHasJustMovedIsSlow) {
  for (const auto& [moved_s, end_s] : {std::pair{2, 6}, std::pair{4, 12}}) {
    open(2);
    time_ns = 0;
    begin_all(record(0, 1));
    detector.overdue(1, {"collective 0", 6000}, 5 * kSecond);
    judge_at_work(0, {.transfers = 1}, moved_s);
    expect_verdict({"every rank has begun"});
    EXPECT_NEAR(static_cast<double>(time_ns) / kSecond, end_s, 0.5) << moved_s;
  }
}

TEST_F(FailureDetectorTest, BeforeTheFirstStepALateRankHasMoreTimeButAStuckOneHasNot) {
  open(2);
  detector.gather(1, 0, "the plan", "");
  detector.overdue(1, {"the exchange of the plan", 4000, true}, kSecond);
  EXPECT_TRUE(judge_at_work(0, {}, 0).empty());
  expect_verdict({"rank 0 (pid 70 on node1) is late: others have reached exchange the plan"});
  EXPECT_NEAR(static_cast<double>(time_ns) / kSecond, 18, 0.5);
  // Both wait: rank 0 in a collective that rank 1 has left.
  open(2);
  time_ns = kSecond;
  begin_all(record(0, 1));
  detector.gather(1, 0, "the plan", "");
  detector.overdue(0, {"collective 0", 4000, true}, kSecond);
  detector.overdue(1, {"the exchange of the plan", 4000, true}, kSecond + 1);
  judge_at_work(1, {.transfers = 1}, 0);
  expect_verdict(
      {"rank 0 (pid 70 on node1) is late: ", "it waits in collective 0, which the others have left or not begun"});
  EXPECT_LE(time_ns, 3 * kSecond);
}

TEST_F(FailureDetectorTest, TheRankWithFewerCollectivesIsLate) {
  open(4);
  begin_all(record(0, 1));
  for (const int rank : {0, 1, 3}) begin(rank, record(1, 2, "bucket 4"));
  finish(2, 1);
  detector.overdue(1, {"collective 1", 2500}, 10 * kSecond);
  judge(10 * kSecond);
  expect_verdict(
      {"rank 2 (pid 72 on node1) is late: others have begun collective 1 (all_reduce of bucket 4, 4096 bytes, phase "
       "reduce, step 5), "
       "and it has not",
       "its last known was collective 0", "which it finished",
       "rank 1 (pid 71 on node1) has waited 2.5 s in collective 1"});
}

TEST_F(FailureDetectorTest, ARankWithoutACollectiveIsLate) {
  open(3);
  begin(1, record(0, 1));
  begin(2, record(0, 1));
  detector.overdue(2, {"collective 0", 2500}, kSecond);
  judge(kSecond);
  expect_verdict({"rank 0 (pid 70 on node1) is late: others have begun collective 0", "it had begun no collective"});
}

TEST_F(FailureDetectorTest, NamesTheLateDevice) {
  open(2, 3);
  for (int rank = 0; rank < 2; ++rank) {
    for (int d = 0; d < 3; ++d) {
      if (rank != 1 || d != 2) begin(rank, record(0, 1), d);
    }
  }
  detector.overdue(0, {"collective 0", 2500}, kSecond);
  judge(kSecond);
  expect_verdict({"rank 1 (pid 71 on node1), device cuda:2 is late"});
}

TEST_F(FailureDetectorTest, TheRankThatMissesAnExchangeIsLate) {
  open(3);
  begin_all(record(0, 1));
  for (const int rank : {0, 2}) EXPECT_FALSE(detector.gather(rank, 0, "the votes", "v"));
  detector.overdue(0, {"the exchange of the votes", 4000}, kSecond);
  judge(kSecond);
  expect_verdict({"rank 1 (pid 71 on node1) is late: others have reached exchange the votes, and it has not",
                  "collective 0", "rank 0 (pid 70 on node1) has waited 4.0 s in the exchange of the votes"});
}

TEST_F(FailureDetectorTest, WhenAllRanksWaitTheNetworkIsBlamed) {
  open(2);
  begin_all(record(0, 1));
  detector.overdue(1, {"collective 0", 4000}, kSecond);
  judge(kSecond);
  expect_verdict({"rank 1 (pid 71 on node1) has waited 4.0 s in collective 0, which every rank has begun", "network",
                  "ProcessGroupOptions::timeout_ms"});
}

TEST_F(FailureDetectorTest, AWaitThatEndsInTimeBlamesNoRank) {
  open(3);
  begin(0, record(0, 1));
  detector.overdue(0, {"collective 0", 3000}, kSecond);
  tick(kSecond + kSecond / 2);
  detector.not_overdue(0);
  judge(kSecond);
  EXPECT_EQ(detector.verdict(), "");
  // Another process's wait still counts.
  detector.overdue(0, {"collective 0", 3000}, 4 * kSecond);
  detector.overdue(2, {"an exchange", 3000}, 4 * kSecond);
  detector.not_overdue(0);
  judge(4 * kSecond);
  expect_verdict({"rank 2 (pid 72 on node1) has waited 3.0 s in an exchange"});
}

TEST_F(FailureDetectorTest, NamesTheRankWhoseCollectiveDiffersFromTheMajority) {
  // In any order of arrival.
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, {1, 0, 2, 3}, {3, 2, 0, 1}}) {
    open(4);
    for (const int rank : order) {
      EXPECT_EQ(detector.verdict(), "");
      begin(rank, rank == 1 ? record(7, 99, "bucket 0") : record(7, 42));
    }
    expect_verdict(
        {"rank 1 (pid 71 on node1) began collective 7 (all_reduce of bucket 0, 4096 bytes, phase reduce, step 5), "
         "where ranks 0, 2, 3 began "
         "collective 7 (all_reduce of bucket 3",
         "the same collectives in the same order"});
  }
}

TEST_F(FailureDetectorTest, RankZeroCanBeTheDeviatingRank) {
  open(3);
  for (int rank = 0; rank < 3; ++rank) begin(rank, record(0, rank == 0 ? 1 : 2));
  expect_verdict({"rank 0 (pid 70 on node1) began collective 0", "where ranks 1, 2 began"});
}

TEST_F(FailureDetectorTest, OfTwoDisagreeingRanksTheHigherIsNamed) {
  for (const int first : {0, 1}) {
    open(2);
    for (const int rank : {first, 1 - first}) begin(rank, record(3, static_cast<uint64_t>(rank)));
    expect_verdict({"rank 1 (pid 71 on node1) began collective 3", "where rank 0 began collective 3"});
  }
}

TEST_F(FailureDetectorTest, NamesTheDeviatingDeviceByMajority) {
  open(2, 2);
  begin(0, record(0, 1), 0);
  begin(0, record(0, 1), 1);
  begin(1, record(0, 1), 0);
  begin(1, record(0, 2), 1);
  expect_verdict({"rank 1 (pid 71 on node1), device cuda:1 began collective 0", "where ranks 0, 1 began"});
}

TEST_F(FailureDetectorTest, CommunicatorGroupsAreComparedSeparately) {
  open(2);
  CollectiveRecord second = record(0, 8);
  second.group = 1;
  begin(0, record(0, 1));
  begin(0, second);
  begin(1, second);  // in the other order: the groups are independent
  begin(1, record(0, 1));
  judge(0);
  EXPECT_EQ(detector.verdict(), "");
  second.signature = 9;
  second.sequence = 1;
  begin(0, second);
  second.signature = 10;
  begin(1, second);
  expect_verdict({"rank 1", "collective 1 of group 1 (all_reduce"});
}

TEST_F(FailureDetectorTest, TooFewCollectivesAtTheEndNameTheMissingOne) {
  open(3);
  begin_all(record(0, 1));
  for (const int rank : {0, 2}) begin(rank, record(1, 2, "bucket 9"));
  detector.compare_counts();
  expect_verdict({"rank 1 (pid 71 on node1) began 1 collectives, where ranks 0, 2 began 2",
                  "it did not begin collective 1 (all_reduce of bucket 9", "the same collectives"});
}

TEST_F(FailureDetectorTest, TooManyCollectivesAtTheEndNameTheLastOne) {
  open(3);
  begin_all(record(0, 1));
  begin(2, record(1, 2, "bucket 9"));
  detector.compare_counts();
  expect_verdict({"rank 2 (pid 72 on node1) began 2 collectives, where ranks 0, 1 began 1",
                  "its last known was collective 1 (all_reduce of bucket 9"});
}

TEST_F(FailureDetectorTest, EqualCountsAtTheEndAreAccepted) {
  open(3);
  detector.compare_counts();
  begin_all(record(0, 1));
  detector.compare_counts();
  EXPECT_EQ(detector.verdict(), "");
}

TEST_F(FailureDetectorTest, AFailureIsReportedWithReasonAndPosition) {
  open(3);
  begin(2, record(4, 1));
  detector.fail(2, "cuda:0: out of memory");
  expect_verdict({"rank 2 (pid 72 on node1) failed: cuda:0: out of memory",
                  "its last known was collective 4 (all_reduce of bucket 3"});
}

TEST_F(FailureDetectorTest, GatheredPartsAreInRankOrder) {
  open(3);
  EXPECT_FALSE(detector.gather(2, 0, "names", "c"));
  EXPECT_FALSE(detector.gather(0, 0, "names", ""));
  const auto parts = detector.gather(1, 0, "names", "b");
  ASSERT_TRUE(parts);
  EXPECT_EQ(*parts, (std::vector<std::string>{"", "b", "c"}));
}

TEST_F(FailureDetectorTest, ExchangesForDifferentPurposesAreADisagreement) {
  open(3);
  EXPECT_FALSE(detector.gather(2, 0, "the plan", ""));
  EXPECT_FALSE(detector.gather(0, 0, "the votes", ""));
  expect_verdict({"rank 0 (pid 70 on node1) reached exchange the votes, where rank 2 reached exchange the plan",
                  "the same program"});
}

TEST_F(FailureDetectorTest, KeepsTheFirstCause) {
  open(3);
  detector.fail(1, "first");
  const std::string first = detector.verdict();
  detector.fail(2, "second");
  detector.lost(0, kSecond);
  begin(0, record(0, 1));
  begin(1, record(0, 2));
  begin(2, record(0, 3));
  detector.overdue(0, {"x", 1000}, kSecond);
  judge(kSecond);
  EXPECT_EQ(detector.verdict(), first);
}

TEST_F(FailureDetectorTest, OfTwoDeathsTheFirstIsTheCause) {
  open(3);
  detector.lost(2, kSecond);
  detector.lost(1, kSecond + 1);
  judge(kSecond);
  expect_verdict({"rank 2 (pid 72 on node1) died"});
}

TEST_F(FailureDetectorTest, AReasonThatArrivesRightAfterADeathReplacesIt) {
  open(3);
  detector.lost(1, kSecond);
  detector.fail(2, "out of memory");
  judge(kSecond);
  expect_verdict({"rank 2 (pid 72 on node1) failed: out of memory"});
}

}  // namespace
}  // namespace vitrine::process_group
