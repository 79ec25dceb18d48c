// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/process_group/process_group.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/leaves_nothing_behind.h"

/// Process groups of several processes, which are threads of the test.
namespace vitrine::test {

/// Processes that are expected to succeed have ample time, because the machine may be busy.
inline constexpr int64_t kPatientMs = 60000;

inline ProcessGroupOptions process_options(int rank, int size, const std::string& init,
                                           int64_t timeout_ms = kPatientMs) {
  // No thread of the test is known to be at work.
  return {
      .rank = rank,
      .size = size,
      .rendezvous = init,
      .timeout_ms = timeout_ms,
      .processor_ns = [] { return int64_t{0}; },
  };
}

/// A separate rendezvous for each test.
class RendezvousPlace {
 public:
  std::string path() const { return (folder_.path() / "meet").string(); }
  std::string init() const { return "file:" + path(); }

 private:
  TempFolder folder_;
};

/// Runs work(rank) on a thread for each rank; an exception fails the test.
inline void run_ranks(int size, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&work, rank] {
      try {
        work(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Like run_processes(), with an open process group for each, which is destroyed when work returns.
inline void run_processes(int size, const std::function<void(ProcessGroup&)>& work, const std::string& init = {},
                          int64_t timeout_ms = kPatientMs) {
  const RendezvousPlace place;
  run_ranks(size, [&](int rank) {
    ProcessGroup process_group(process_options(rank, size, init.empty() ? place.init() : init, timeout_ms));
    work(process_group);
  });
}

/// Message of the CommError that `work` throws; fails the test if it throws none.
inline std::string comm_error_of(const std::function<void()>& work) {
  const std::string message = error_of<CommError>(work);
  EXPECT_NE(message, "") << "nothing was thrown";
  return message;
}

}  // namespace vitrine::test
