// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/job_processes.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/printable.h"
#include "runtime/process_group/rank_list.h"
#include "runtime/text.h"

namespace vitrine::process_group {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The value of a variable in /proc/PID/environ; empty if it is not set, or if the process is another user's.
std::string variable_of(const std::string& environment, const std::string& name) {
  for (const std::string& entry : split_text(environment, '\0')) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return {};
}

/// The state in /proc/PID/stat, which follows the command's name in parentheses.
char state_of(const fs::path& process) {
  const std::string stat = content_of(process / "stat");
  const size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

}  // namespace

JobProcesses inspect_job(int size) {
  struct Rank {
    std::string stopped, other;  // its process that is stopped; one that runs another program, and which
    bool runs_this = false;      // the program of this process
  };
  const std::string own = content_of("/proc/self/environ"), job = variable_of(own, "PMIX_NAMESPACE");
  if (job.empty()) return {.problem = "the launcher does not say which processes belong to this job"};
  std::map<int, Rank> ranks;
  std::error_code ignored, unreadable;
  const fs::path program = fs::read_symlink("/proc/self/exe", unreadable);
  for (fs::directory_iterator at("/proc", ignored), end; !ignored && at != end; at.increment(ignored)) {
    const fs::path& process = at->path();
    const std::string pid = process.filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = content_of(process / "environ");
    const auto rank = parse_number<int>(variable_of(environment, "PMIX_RANK"));
    if (!rank || variable_of(environment, "PMIX_NAMESPACE") != job) continue;
    Rank& found = ranks[*rank];
    const fs::path runs = fs::read_symlink(process / "exe", unreadable);
    found.runs_this = found.runs_this || runs == program;
    found.other = fmt::format("rank {} (pid {}) runs {} instead", *rank, pid, printable(runs.filename().string()));
    if (const char state = state_of(process); state == 'T' || state == 't') found.stopped = pid;
  }
  JobProcesses result;
  std::vector<std::string> problems;
  std::vector<int> running;
  for (const auto& [rank, found] : ranks) {
    if (!found.stopped.empty()) {
      problems.push_back(fmt::format("rank {} (pid {}) is stopped", rank, found.stopped));
      result.stopped.push_back(parse_number<pid_t>(found.stopped).value());
    } else if (!found.runs_this) {
      problems.push_back(found.other);
    } else {
      running.push_back(rank);
    }
  }
  const int here = parse_number<int>(variable_of(own, "OMPI_COMM_WORLD_LOCAL_SIZE")).value_or(0);
  const int absent = here - static_cast<int>(ranks.size());
  if (absent > 0 && here == size) {
    std::vector<int> missing;
    for (int rank = 0; rank < size; ++rank) {
      if (!ranks.contains(rank)) missing.push_back(rank);
    }
    problems.push_back(fmt::format("{} of {} ended before it or never started", describe_ranks(missing), size));
  } else if (absent > 0) {
    problems.push_back(
        fmt::format("{} of the {} processes of this machine ended before it or never started; ranks {} "
                    "run here",
                    absent, here, fmt::join(running, ", ")));
  }
  if (!running.empty()) result.lowest_running_rank = running.front();
  result.all_run = static_cast<int>(running.size()) == size;
  result.problem = problems.empty() ? fmt::format("no process of this machine is stopped; ranks {} run here",
                                                  fmt::join(running, ", "))
                                    : fmt::format("{}", fmt::join(problems, ", "));
  return result;
}

}  // namespace vitrine::process_group
