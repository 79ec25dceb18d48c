// SPDX-License-Identifier: Apache-2.0
#include "tests/multi_process/mpirun.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

#include <unistd.h>

namespace vitrine::test {

namespace {

const char* const kMpirun = VITRINE_MPIRUN;

/// Quotes a word for the shell.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

ChildResult run_to_end(int processes, const Command& mpirun) {
  Command all = {"timeout", "--foreground", "--signal=KILL", std::to_string(kMpirunSeconds + processes)};
  all.insert(all.end(), mpirun.begin(), mpirun.end());
  return ChildProcess(all, ChildProcess::Streams::pipes, mpirun_environment()).wait();
}

}  // namespace

std::string mpirun_missing() {
  if (access(kMpirun, X_OK) == 0) return {};
  return "mpirun was not found when the tests were configured, or is gone; install it with: apt-get install "
         "openmpi-bin";
}

Command mpirun_command(const std::vector<Command>& commands) {
  std::string script = "case $OMPI_COMM_WORLD_RANK in";
  for (size_t rank = 0; rank < commands.size(); ++rank) {
    script += " " + std::to_string(rank) + ") exec";
    for (const std::string& word : commands[rank]) script += " " + quoted(word);
    script += ";;";
  }
  return mpirun_command(static_cast<int>(commands.size()), words("sh -c {}", script + " esac"));
}

Command mpirun_command(int processes, const Command& command, int seconds) {
  Command all = {kMpirun,     "--oversubscribe",
                 "--bind-to", "none",
                 "--timeout", std::to_string(seconds > 0 ? seconds : 60 + processes),
                 "-np",       std::to_string(processes)};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

Command with_output_in(const std::string& folder, const Command& command) {
  std::string script = "exec";
  for (const std::string& word : command) script += " " + quoted(word);
  const std::string rank = ".$OMPI_COMM_WORLD_RANK";
  return words("sh -c {}", script + " >" + quoted(folder) + "/out" + rank + " 2>" + quoted(folder) + "/err" + rank);
}

std::vector<std::string> mpirun_environment() {
  return {"OMPI_ALLOW_RUN_AS_ROOT=1",
          "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "OMP_WAIT_POLICY=passive",
          "RANK",
          "WORLD_SIZE",
          "LOCAL_RANK",
          "LOCAL_WORLD_SIZE"};
}

ChildResult mpirun(int processes, const Command& command) {
  return run_to_end(processes, mpirun_command(processes, command));
}

ChildResult mpirun(const std::vector<Command>& commands) {
  return run_to_end(static_cast<int>(commands.size()), mpirun_command(commands));
}

pid_t process_of_rank(pid_t mpirun, int rank) {
  const auto content = [](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string parent = "\nPPid:\t" + std::to_string(mpirun) + "\n";
  const std::string variable = std::string(1, '\0') + "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + '\0';
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (content(entry.path() / "status").find(parent) == std::string::npos) continue;
    if (content(entry.path() / "environ").find(variable) != std::string::npos) return std::stoi(name);
  }
  throw std::runtime_error("mpirun has no rank " + std::to_string(rank));
}

std::string device_counts_label(const ::testing::TestParamInfo<std::vector<int>>& info) {
  std::string label;
  for (const int devices : info.param) label += (label.empty() ? "" : "And") + std::to_string(devices);
  return label + "Devices";
}

}  // namespace vitrine::test
