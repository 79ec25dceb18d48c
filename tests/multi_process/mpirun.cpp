// SPDX-License-Identifier: Apache-2.0
#include "tests/multi_process/mpirun.h"

#include <cstdlib>
#include <stdexcept>

#include <unistd.h>

namespace vitrine::test {

namespace {

const char* const kMpirun = VITRINE_MPIRUN;

}  // namespace

std::string mpirun_missing() {
  if (access(kMpirun, X_OK) == 0) return {};
  return "mpirun was not found when the tests were configured, or is gone; install it with: apt-get install openmpi-bin";
}

Command mpirun_command(const std::vector<Command>& commands) {
  Command all = {kMpirun, "--oversubscribe", "--bind-to", "none", "--timeout", "60"};
  for (size_t i = 0; i < commands.size(); ++i) {
    if (i > 0) all.emplace_back(":");
    all.insert(all.end(), {"-np", "1"});
    all.insert(all.end(), commands[i].begin(), commands[i].end());
  }
  return all;
}

Command mpirun_command(int processes, const Command& command) {
  Command all = {kMpirun, "--oversubscribe", "--bind-to", "none", "--timeout", "60", "-np", std::to_string(processes)};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

std::vector<std::string> mpirun_environment() {
  return {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_WAIT_POLICY=passive", "RANK", "WORLD_SIZE", "LOCAL_RANK",
          "LOCAL_WORLD_SIZE"};
}

ChildResult mpirun(int processes, const Command& command) {
  return ChildProcess(mpirun_command(processes, command), ChildProcess::Streams::pipes, mpirun_environment()).wait();
}

ChildResult mpirun(const std::vector<Command>& commands) {
  return ChildProcess(mpirun_command(commands), ChildProcess::Streams::pipes, mpirun_environment()).wait();
}

std::string device_counts_label(const ::testing::TestParamInfo<std::vector<int>>& info) {
  std::string label;
  for (const int devices : info.param) label += (label.empty() ? "" : "And") + std::to_string(devices);
  return label + "Devices";
}

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "vitrine_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  folder_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace vitrine::test
