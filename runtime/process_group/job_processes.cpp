// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/job_processes.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

JobProcesses inspect_job() {
  const std::string job = variable_of(content_of("/proc/self/environ"), "PMIX_NAMESPACE");
  if (job.empty()) return {.problem = "the launcher does not say which processes belong to this job"};
  std::map<int, std::string> stopped;  // rank: its process that is stopped, or empty
  std::error_code ignored;
  for (fs::directory_iterator at("/proc", ignored), end; !ignored && at != end; at.increment(ignored)) {
    const fs::path& process = at->path();
    const std::string pid = process.filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = content_of(process / "environ");
    const auto rank = parse_number<int>(variable_of(environment, "PMIX_RANK"));
    if (!rank || variable_of(environment, "PMIX_NAMESPACE") != job) continue;
    std::string& found = stopped[*rank];
    if (const char state = state_of(process); state == 'T' || state == 't') found = pid;
  }
  JobProcesses result;
  std::vector<std::string> problems;
  std::vector<int> running;
  for (const auto& [rank, pid] : stopped) {
    if (pid.empty()) {
      running.push_back(rank);
    } else {
      problems.push_back(fmt::format("rank {} (pid {}) is stopped", rank, pid));
      result.stopped.push_back(parse_number<pid_t>(pid).value());
    }
  }
  if (!running.empty()) result.lowest_running_rank = running.front();
  result.problem = problems.empty() ? fmt::format("no process of this machine is stopped; ranks {} run here",
                                                  fmt::join(running, ", "))
                                    : fmt::format("{}", fmt::join(problems, ", "));
  return result;
}

}  // namespace vitrine::process_group
