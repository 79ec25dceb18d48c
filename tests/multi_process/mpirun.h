// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/child_process.h"

/// Programs started several times by mpirun, as children of a test.
namespace vitrine::test {

using Command = std::vector<std::string>;

/// Why nothing can be started by mpirun here; empty where it can.
std::string mpirun_missing();

/// mpirun that starts `command` in `processes` processes, which share the cores as they come, and ends them after a minute.
Command mpirun_command(int processes, const Command& command);
/// The same with a command for each process. A shell chooses it by the rank: `mpirun A : B` ends in a segmentation fault with the Open MPI of
/// Debian 13.
Command mpirun_command(const std::vector<Command>& commands);

/// What a process that mpirun starts finds in its environment, and nothing of what another launcher put into this one's.
std::vector<std::string> mpirun_environment();

/// Runs mpirun_command(...) to its end.
ChildResult mpirun(int processes, const Command& command);
ChildResult mpirun(const std::vector<Command>& commands);

/// A test that needs mpirun: skipped where it is missing.
class MpirunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = mpirun_missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
};

/// A process that mpirun, whose process id is given, has started; throws when it is not there.
pid_t process_of_rank(pid_t mpirun, int rank);

/// Names a test by how many devices each process has: "2And1Devices".
std::string device_counts_label(const ::testing::TestParamInfo<std::vector<int>>& info);

/// A folder that goes with its owner.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path() const { return folder_.string(); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace vitrine::test
