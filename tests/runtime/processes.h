// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/process_group/process_group.h"
#include "tests/data/temp_folder.h"
#include "tests/support/leaves_nothing_behind.h"

/// ProcessGroups of several processes, which are threads of the test's.
namespace vitrine::test {

/// Where they are expected to succeed they have all the time they may need on a machine that is busy with other things.
inline constexpr int64_t kPatientMs = 60000;

inline ProcessGroupOptions process_options(int rank, int size, const std::string& init, int64_t timeout_ms = kPatientMs) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.size = size;
  options.rendezvous = init;
  options.timeout_ms = timeout_ms;
  return options;
}

/// A rendezvous place of its own.
class RendezvousPlace {
 public:
  std::string path() const { return (folder_.path() / "meet").string(); }
  std::string init() const { return "file:" + path(); }

 private:
  TempFolder folder_;
};

/// Runs work(rank) on a thread for each rank; what it throws fails the test.
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

/// The same with a process group for each, which has met; it is destroyed where work returns.
inline void run_processes(int size, const std::function<void(ProcessGroup&)>& work, const std::string& init = {}, int64_t timeout_ms = kPatientMs) {
  const RendezvousPlace place;
  run_ranks(size, [&](int rank) {
    ProcessGroup process_group(process_options(rank, size, init.empty() ? place.init() : init, timeout_ms));
    work(process_group);
  });
}

/// What `work` throws as a CommError; fails the test when it throws nothing.
inline std::string comm_error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const CommError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace vitrine::test
