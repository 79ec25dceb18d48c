// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/abortable_barrier.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace vitrine {
namespace {

TEST(AbortableBarrierTest, BlocksUntilAllHaveArrived) {
  constexpr uint32_t kThreads = 3, kRounds = 2000;
  AbortableBarrier counter;
  std::atomic<uint32_t> come{0};
  std::atomic<bool> early{false};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (uint32_t round = 1; round <= kRounds; ++round) {
        come.fetch_add(1);
        counter.arrive(round * kThreads);
        counter.wait(round * kThreads, round % 2 == 0 ? 0 : 2000);
        if (come.load() < round * kThreads) early = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(early);
}

TEST(AbortableBarrierTest, AbortHasTheSameResultForAll) {
  constexpr uint32_t kThreads = 3;
  for (int round = 0; round < 500; ++round) {
    AbortableBarrier counter;
    std::atomic<int> passed{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        if (counter.arrive(kThreads) && counter.wait(kThreads, round % 2 == 0 ? 0 : 1000)) ++passed;
      });
    }
    counter.abort();
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(passed == 0 || passed == static_cast<int>(kThreads)) << passed;
    EXPECT_FALSE(counter.arrive(2 * kThreads));
  }
}

TEST(AbortableBarrierTest, PassesWhenTheAbortComesAfterTheLastArrival) {
  AbortableBarrier counter;
  EXPECT_TRUE(counter.arrive(1));
  counter.abort();
  EXPECT_TRUE(counter.wait(1, 0));
  EXPECT_FALSE(counter.arrive(2));
  EXPECT_FALSE(counter.wait(2, 0));
}

TEST(AbortableBarrierTest, LeavingWorksAfterAnAbort) {
  AbortableBarrier counter;
  counter.abort();
  counter.leave(2);
  counter.leave(2);
  counter.wait_regardless(2, 0);
  EXPECT_FALSE(counter.wait(2, 0));
}

}  // namespace
}  // namespace vitrine
