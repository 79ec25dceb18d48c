// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/spin_watch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/cpu/affinity.h"
#include "runtime/parallel_for.h"

namespace vitrine::cpu {
namespace {

TEST(SpinRule, SleepsSoonOnlyAfterTwoSamplesOfSharedCores) {
  SpinRule rule;
  EXPECT_FALSE(rule.sample(0.9));
  EXPECT_FALSE(rule.sample(0.1));  // one sample may be a short job of someone else
  EXPECT_FALSE(rule.sample(0.9));
  EXPECT_TRUE(rule.sample(0.2));
}

TEST(SpinRule, SpinsAgainAfterTwoSecondsOfFreeCores) {
  SpinRule rule;
  rule.sample(0.9);
  ASSERT_TRUE(rule.sample(0.9));
  for (int i = 1; i < SpinRule::kFreeSamples; ++i) EXPECT_TRUE(rule.sample(0.01)) << i;
  EXPECT_TRUE(rule.sample(0.1));  // neither shared nor free: the count begins again
  for (int i = 1; i < SpinRule::kFreeSamples; ++i) EXPECT_TRUE(rule.sample(0.01)) << i;
  EXPECT_FALSE(rule.sample(0.01));
  EXPECT_FALSE(rule.sample(0.9));
}

TEST(SchedulerTimes, AddsUpTheThreads) {
  const std::string folder = ::testing::TempDir() + "vitrine_schedstat_" + std::to_string(getpid());
  EXPECT_FALSE(scheduler_times(folder).has_value());
  for (const char* const thread : {"10", "11", "12"}) {
    const std::filesystem::path task = std::filesystem::path(folder) / "self" / "task" / thread;
    std::filesystem::create_directories(task);
    if (std::string(thread) != "12")
      std::ofstream(task / "schedstat") << "2500000000 250000000 17\n";  // the third has just ended
  }
  const std::optional<SchedulerTimes> times = scheduler_times(folder);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ(times->running_s, 5.0);
  EXPECT_DOUBLE_EQ(times->waiting_s, 0.5);
}

int64_t count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(SleepingTeam, HasMoreThreadsThanCoresAndTakesThemAlong) {
  int64_t sum = 0;
  const auto add_up = [&] {
    std::vector<int64_t> values(10000);
    vitrine::parallel_for(10000, 100, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] = i;
    });
    sum = std::accumulate(values.begin(), values.end(), int64_t{0});
  };
  add_up();  // starts this thread's own team
  const int64_t before = count_threads();
  {
    const SleepingTeam team;
    const int64_t after = count_threads();
    EXPECT_EQ(after - before, team.size());
    EXPECT_TRUE(team.size() == 1 || team.size() > static_cast<int>(available_cores().size())) << team.size();
    add_up();
    EXPECT_EQ(sum, 49995000);
  }
  // libgomp does not wait for the threads of a team that ends.
  for (int i = 0; i < 1000 && count_threads() > before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(count_threads(), before);
}

TEST(SpinWatch, LeavesTheChoiceToTheEnvironment) {
  for (const char* const variable : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    const char* const old = std::getenv(variable);
    const std::string kept = old == nullptr ? "" : old;
    setenv(variable, "1", 1);
    EXPECT_EQ(SpinWatch::start(), nullptr) << variable;
    old == nullptr ? unsetenv(variable) : setenv(variable, kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace vitrine::cpu
