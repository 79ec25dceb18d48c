// SPDX-License-Identifier: Apache-2.0
#include "runtime/parallel_for.h"

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"

namespace vitrine {
namespace {

constexpr int kThreads = 3;

/// Runs `work` on the stream of a CPU device with kThreads threads.
template <class Work>
void run_on_device(const Work& work) {
  DeviceGroupOptions options{
      .devices = {{Backend::cpu, 0}}, .memory_bytes = {1 << 20}, .threads_per_device = {kThreads}};
  DeviceGroup group(options);
  group[0].compute().dispatch({"work", {}, {}}, [&work] { work(); });
  group.synchronize();
}

TEST(ParallelFor, RefusesMoreThreadsThanADeviceCanHave) {
  DeviceGroupOptions options{
      .devices = {{Backend::cpu, 0}}, .memory_bytes = {1 << 20}, .threads_per_device = {kMostThreadsPerDevice + 1}};
  EXPECT_THROW(DeviceGroup group(options), ConfigError);
}

TEST(ParallelFor, CoversEveryIndexOnceInPartsOfWholeGrains) {
  run_on_device([] {
    for (const int64_t count : {0, 1, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 2000}) {
        std::vector<int> hits(static_cast<size_t>(count), 0);
        std::mutex mutex;
        int parts = 0;
        parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          const std::lock_guard lock(mutex);
          ++parts;
          EXPECT_EQ(begin % grain, 0);
          EXPECT_TRUE(end % grain == 0 || end == count);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(count), 1));
        EXPECT_LE(parts, team_size());
      }
    }
  });
}

TEST(ParallelFor, UsesTheTeamOfTheDevice) {
  run_on_device([] {
    std::set<std::thread::id> threads;
    std::mutex mutex;
    parallel_for(1000, 1, [&](int64_t, int64_t) {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    EXPECT_TRUE(team_size() == kThreads || team_size() == 1) << team_size();  // 1: built without OpenMP
    EXPECT_EQ(threads.size(), static_cast<size_t>(team_size()));
  });
}

TEST(ParallelFor, RethrowsTheErrorOfTheLowestPartWhenAllHaveEnded) {
  const auto fail = [] {
    parallel_for(1000, 1, [](int64_t begin, int64_t) { throw std::out_of_range("part at " + std::to_string(begin)); });
  };
  EXPECT_EQ(error_of<std::out_of_range>([&] { run_on_device(fail); }), "part at 0");
}

TEST(ParallelFor, RefusesAGrainBelowOne) {
  EXPECT_THROW(parallel_for(10, 0, [](int64_t, int64_t) {}), ConfigError);
}

}  // namespace
}  // namespace vitrine
