// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

namespace vitrine::test {

/// Checks in its destructor that no thread and no open file is left.
class LeavesNothingBehind {
 public:
  LeavesNothingBehind() {
    std::thread([] {}).join();  // sanitizers start a thread of their own together with the first one
    threads_ = entries_of("/proc/self/task");
    files_ = entries_of("/proc/self/fd");
  }
  ~LeavesNothingBehind() {
    // A joined thread stays listed for a moment.
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (entries_of("/proc/self/task") > threads_ && std::chrono::steady_clock::now() < give_up)
      std::this_thread::yield();
    EXPECT_LE(entries_of("/proc/self/task"), threads_);
    EXPECT_EQ(entries_of("/proc/self/fd"), files_);
  }
  LeavesNothingBehind(const LeavesNothingBehind&) = delete;
  LeavesNothingBehind& operator=(const LeavesNothingBehind&) = delete;

 private:
  static int entries_of(const char* folder) {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
    return count;
  }
  int threads_ = 0, files_ = 0;
};

}  // namespace vitrine::test
