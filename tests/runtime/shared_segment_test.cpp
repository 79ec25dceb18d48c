// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <csignal>
#include <filesystem>
#include <set>

#include "runtime/comm/shared_sums.h"
#include "tests/runtime/processes.h"

namespace vitrine::comm {
namespace {

using test::run_processes;

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  return names;
}

TEST(SharedSegment, AllProcessesMapTheSameZeros) {
  constexpr int64_t kBytes = 100'000;
  std::atomic<int> written{0};
  run_processes(3, [&](ProcessGroup& process_group) {
    const auto [segment, refusal] = SharedSegment::create(process_group, kBytes);
    ASSERT_EQ(refusal, "");
    std::byte& mine = segment->data()[kBytes - 1 - process_group.rank()];
    EXPECT_EQ(mine, std::byte{0});
    mine = std::byte(process_group.rank() + 1);
    process_group.sum("all have written", {0});
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(segment->data()[kBytes - 1 - rank], std::byte(rank + 1));
    ++written;
    process_group.close();
  });
  EXPECT_EQ(written, 3);
}

TEST(SharedSegment, AFileThatIsNotRankZerosIsRefused) {
  run_processes(2, [&](ProcessGroup& process_group) {
    if (process_group.rank() == 0) {
      // As rank 0 of another PID namespace, whose path leads to some other file here.
      process_group.broadcast("the path of shared memory", "/proc/self/exe");
      process_group.broadcast("the identity of shared memory", "1:1");
      process_group.exchange("the mapping of shared memory", "", [](const std::vector<std::string>& refusals) {
        EXPECT_NE(refusals[1], "");
        return std::vector<std::string>{refusals[1]};
      });
    } else {
      EXPECT_EQ(SharedSegment::create(process_group, 4096).segment, nullptr);
    }
    process_group.close();
  });
}

/// Creates a segment in two processes, one of which is killed when rank 0 has reserved the memory.
[[noreturn]] void die_while_creating() {
  run_processes(2, [&](ProcessGroup& process_group) {
    if (process_group.rank() == 0) SharedSegment::create(process_group, 1 << 20);
    process_group.broadcast("the path of shared memory", "");
    kill(getpid(), SIGKILL);
  });
  std::abort();
}

TEST(SharedSegment, NothingIsLeftWhenAProcessIsKilledWhileCreatingIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::set<std::string> before = shared_files();
  EXPECT_EXIT(die_while_creating(), ::testing::KilledBySignal(SIGKILL), "");
  std::set<std::string> left;
  for (const std::string& name : shared_files()) {
    if (name.starts_with("vitrine-") && !before.contains(name)) left.insert(name);
  }
  EXPECT_EQ(left, std::set<std::string>{});
}

}  // namespace
}  // namespace vitrine::comm
