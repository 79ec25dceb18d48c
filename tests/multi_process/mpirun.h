// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"

/// Programs that mpirun starts several times, as children of a test.
namespace vitrine::test {

using Command = std::vector<std::string>;

/// Why mpirun cannot start processes here; empty if it can.
std::string mpirun_missing();

/// Command that starts `command` in `processes` processes, which share the cores, and ends them after `seconds`; 0: a
/// minute, and a second for each process.
Command mpirun_command(int processes, const Command& command, int seconds = 0);
/// Like mpirun_command(), with a command for each process. A shell chooses it by rank, because `mpirun A : B` crashes
/// with Debian 13's Open MPI.
Command mpirun_command(const std::vector<Command>& commands);

/// A process of mpirun that writes its standard streams to FOLDER/out.RANK and FOLDER/err.RANK: the mpirun of Open MPI
/// 5 loses parts of what a process wrote last if it is interrupted or the process fails, or forwards them to the wrong
/// stream.
Command with_output_in(const std::string& folder, const Command& command);

/// Environment for mpirun's processes, without the variables of other launchers.
std::vector<std::string> mpirun_environment();

/// Runs mpirun_command(...) to its end. An mpirun that has not ended after kMpirunSeconds, and a second for each
/// process, is killed (exit code 137).
inline constexpr int kMpirunSeconds = 90;
ChildResult mpirun(int processes, const Command& command);
ChildResult mpirun(const std::vector<Command>& commands);

/// A test that needs mpirun: skipped if it is missing.
class MpirunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = mpirun_missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
};

/// A process started by the mpirun with this process id; throws if it does not exist.
pid_t process_of_rank(pid_t mpirun, int rank);

/// Names a test by the number of devices of each process: "2And1Devices".
std::string device_counts_label(const ::testing::TestParamInfo<std::vector<int>>& info);

}  // namespace vitrine::test
