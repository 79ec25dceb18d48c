// SPDX-License-Identifier: Apache-2.0
// One of four processes dies, hangs, fails or issues a different collective: the culprit is named, all end in time, and
// nothing is left behind. VITRINE_FAULT_REPEATS: number of repetitions of each fault [3].
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"

namespace vitrine::test::faults_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kProcesses = 4;
constexpr int kTimeoutMs = 3000;
// Rendezvous, planning and the steps before the fault, on a busy machine.
constexpr double kStartSeconds = 20;
constexpr double kEndSeconds = kTimeoutMs * 1e-3 + 5;

struct Case {
  const char* fault;
  const char* verdict;    // what the message says about the culprit
  bool reported_at_once;  // not only after the deadline
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.fault; }

int repeats() {
  const char* const text = std::getenv("VITRINE_FAULT_REPEATS");
  return text == nullptr ? 3 : std::atoi(text);
}

/// Other processes whose command line contains `marker`.
std::vector<std::string> processes_with(const std::string& marker) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos || name == std::to_string(getpid())) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::stringstream line;
    line << file.rdbuf();
    if (line.str().find(marker) != std::string::npos) found.push_back(name);
  }
  return found;
}

/// A folder in shared memory for Open MPI's files, apart from those of other programs.
class SharedMemory {
 public:
  explicit SharedMemory(const std::string& name) : folder_(fs::path("/dev/shm") / name) {
    fs::create_directory(folder_);
    setenv("OMPI_MCA_btl_vader_backing_directory", folder_.c_str(), 1);
  }
  ~SharedMemory() {
    unsetenv("OMPI_MCA_btl_vader_backing_directory");
    fs::remove_all(folder_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

 private:
  fs::path folder_;
};

class Faults : public MpirunTest, public ::testing::WithParamInterface<Case> {};

TEST_P(Faults, NameTheCulpritAndEndAllProcessesInTime) {
  const Case c = GetParam();
  for (int attempt = 0; attempt < repeats(); ++attempt) {
    // Rank 0, to which the others are connected, must not be an exception.
    const int culprit = attempt % kProcesses == 1 ? 0 : 1 + attempt % (kProcesses - 1);
    const int step = 40 + 7 * attempt, delay_us = attempt % 3 * 400;
    const std::string marker = fmt::format("vitrine-fault-{}-{}-{}", getpid(), c.fault, attempt);
    SCOPED_TRACE(fmt::format("attempt {}: rank {} at step {}, {} us into it", attempt, culprit, step, delay_us));
    const SharedMemory shared_memory(marker);
    const Clock::time_point begin = Clock::now();
    const ChildResult result =
        mpirun(kProcesses, {test::program_path("fault_worker"), c.fault, std::to_string(culprit), std::to_string(step),
                            std::to_string(delay_us), std::to_string(kTimeoutMs), marker});
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const std::string output = result.error + result.output;
    EXPECT_NE(result.exit_code, 0) << output;
    EXPECT_LT(seconds, kStartSeconds + kEndSeconds) << output;
    const std::regex sentence(fmt::format("process group: rank {} \\(pid [0-9]+ on [^)]+\\) {}", culprit, c.verdict));
    EXPECT_TRUE(std::regex_search(output, sentence)) << "expected: rank " << culprit << " ... " << c.verdict << "\n"
                                                     << output;
    const std::regex another(fmt::format("process group: rank [^{}]", culprit));
    EXPECT_FALSE(std::regex_search(output, another)) << "another rank is blamed too\n" << output;
    const std::regex position(
        "collective [0-9]+ \\(all_reduce of bucket [0-9]+, [0-9]+ bytes, phase reduce, step [0-9]+\\)");
    EXPECT_TRUE(std::regex_search(output, position)) << output;
    EXPECT_EQ(processes_with(marker), std::vector<std::string>{}) << output;
    EXPECT_EQ(shared_memory.files(), std::vector<std::string>{}) << output;
    if (HasFailure()) return;
    std::printf("%s, rank %d: %.1f s\n", c.fault, culprit, seconds);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Faults,
                         ::testing::Values(Case{"kill", "died: its connection closed unexpectedly", true},
                                           Case{"stop", "hangs: it has sent nothing for", false},
                                           Case{"exit", "died: its connection closed unexpectedly", true},
                                           Case{"throw", "failed: cpu:0: .*what does not fit", true},
                                           Case{"hang", "is late: others have begun", false},
                                           Case{"order", "began collective", true},
                                           Case{"count", "began collective", true},
                                           Case{"skip", "began collective", true}),
                         [](const auto& test) { return std::string(test.param.fault); });

class MissingInMpiInit : public MpirunTest {};

class StoppedInMpi : public MpirunTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(StoppedInMpi, EndsAllProcessesAndNamesTheRank) {
  const std::string call = GetParam() == std::string("Finalized") ? "MPI_Finalize" : GetParam();
  for (const int culprit : {0, 2}) {
    const std::string marker = fmt::format("vitrine-stopped-{}-{}-{}", getpid(), GetParam(), culprit);
    const ChildResult result =
        mpirun(kProcesses, {test::program_path("fault_worker"), GetParam(), std::to_string(culprit), "0", "0",
                            std::to_string(kTimeoutMs), marker});
    EXPECT_NE(result.exit_code, 0);
    const std::regex sentence(
        fmt::format("rank {} on [^ ]+ waited 3 s for the other processes in {}: rank {} \\(pid "
                    "[0-9]+\\) is stopped",
                    culprit == 0 ? 1 : 0, call, culprit));
    EXPECT_TRUE(std::regex_search(result.error, sentence)) << result.error;
    expect_lacks(result.error, "no process of this machine is stopped");
    EXPECT_EQ(processes_with(marker), std::vector<std::string>{});
  }
}

TEST_F(MissingInMpiInit, IsNamed) {
  const ChildResult result = mpirun(kProcesses, {test::program_path("fault_worker"), "elsewhere", "2", "0", "0",
                                                 std::to_string(kTimeoutMs), "vitrine-missing"});
  EXPECT_NE(result.exit_code, 0);
  const std::regex sentence(
      "rank 0 on [^ ]+ waited 3 s for the other processes in MPI_Init: rank 2 \\(pid [0-9]+\\) runs sleep instead");
  EXPECT_TRUE(std::regex_search(result.error, sentence)) << result.error;
}

INSTANTIATE_TEST_SUITE_P(All, StoppedInMpi, ::testing::Values("MPI_Init", "MPI_Finalize", "Finalized"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace vitrine::test::faults_test
