// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/mpi_session.h"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/failure_detector.h"
#include "runtime/process_group/process_group_state.h"
#include "runtime/process_group/sockets.h"
#include "runtime/text.h"

namespace vitrine::process_group {
namespace {

constexpr std::chrono::seconds kReportTime{1};
constexpr std::chrono::milliseconds kForwardTime{300};  // in which mpirun forwards the report

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

/// What /proc says about the processes of this MPI job on this machine.
struct JobProcesses {
  int lowest_running_rank = -1;  // -1: unknown
  bool all_run = false;          // all ranks of the job run on this machine
  std::vector<pid_t> stopped = {};
  std::string problem;  // "rank 2 (pid 77) is stopped", which ranks are missing; otherwise which were found
};
/// Finds the processes that have this one's MPI namespace (PMIX_NAMESPACE, set by Open MPI 4 and 5 and by Slurm's
/// PMIx).
///   size  number of processes of the job
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

/// Ends the process with status 1 unless it is destroyed in time. MPI's calls cannot be interrupted.
class Deadline {
 public:
  /// call  "MPI_Init"      note  ends the message; empty: none
  Deadline(const char* call, int rank, int size, int64_t deadline_ms, const char* note = "") {
    if (deadline_ms > 0) thread_ = std::thread([=, this] { watch(call, rank, size, deadline_ms, note); });
  }
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  void watch(const char* call, int rank, int size, int64_t deadline_ms, const char* note) {
    std::unique_lock lock(mutex_);
    const auto ends_within = [&](int64_t ms) {
      return changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return over_; });
    };
    if (ends_within(deadline_ms)) return;
    int64_t waited_ms = deadline_ms;
    JobProcesses job = inspect_job(size);
    const auto reports_for = [rank](const JobProcesses& j) {
      return j.lowest_running_rank < 0 || j.lowest_running_rank == rank;
    };
    // On a busy machine the start is slow.
    if (job.all_run) {
      if (reports_for(job)) {
        fmt::print(stderr, "vitrine: note: {} has taken {:g} s, but all {} ranks run on {}; waiting up to {:g} s\n",
                   call, static_cast<double>(deadline_ms) * 1e-3, size, host_name(),
                   static_cast<double>(deadline_ms * FailureDetector::kPatience) * 1e-3);
      }
      for (; job.all_run && waited_ms < deadline_ms * FailureDetector::kPatience; job = inspect_job(size)) {
        if (ends_within(deadline_ms)) return;
        waited_ms += deadline_ms;
      }
    }
    // One process of each machine reports. The others end a little later: mpirun ends all when the first one ends.
    const bool reports = reports_for(job);
    if (reports) {
      fmt::print(stderr, "vitrine: rank {} on {} waited {:g} s for the other processes in {}: {}{}\n", rank,
                 host_name(), static_cast<double>(waited_ms) * 1e-3, call, job.problem, note);
    }
    std::fflush(nullptr);
    std::this_thread::sleep_for(reports ? kForwardTime : kReportTime);
    // mpirun does not always end a stopped process.
    for (const pid_t pid : job.stopped) {
      if (reports) kill(pid, SIGKILL);
    }
    _exit(1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

class OpenSession final : public MpiSession {
 public:
  OpenSession(int rank, int size, int64_t deadline_ms) {
    const Deadline deadline("MPI_Init", rank, size, deadline_ms);
    int initialized = 0, provided = 0;
    MPI_Initialized(&initialized);
    if (initialized != 0) {
      MPI_Query_thread(&provided);
    } else {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
      owns_ = true;
    }
    if (provided < MPI_THREAD_MULTIPLE)
      throw UnsupportedError(
          "MPI: it was not initialized for calls from several threads; initialize it with MPI_THREAD_MULTIPLE");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string broadcast(const std::string& from_rank0, int64_t timeout_ms) override {
    uint64_t length = from_rank0.size();
    broadcast_bytes(&length, sizeof length, timeout_ms);
    std::string text = from_rank0;
    text.resize(length);
    broadcast_bytes(text.data(), length, timeout_ms);
    return text;
  }

  void progress() override {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
  }

  void finish(int64_t deadline_ms, const std::function<void()>& wait_for_others) override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    const Deadline deadline("MPI_Finalize", rank_, size_, deadline_ms, "; all results are saved");
    if (owns_ && finalized == 0) MPI_Finalize();
    owns_ = false;
    wait_for_others();
  }

 private:
  void broadcast_bytes(void* bytes, size_t count, int64_t timeout_ms) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibcast(bytes, static_cast<int>(count), MPI_BYTE, 0, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
      throw CommError("MPI: the broadcast failed");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    for (int done = 0; done == 0; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) throw CommError("MPI: the broadcast failed");
      if (done == 0 && std::chrono::steady_clock::now() > deadline) {
        throw CommError(fmt::format("MPI: rank {} waited {} s for the address of rank 0", rank_, timeout_ms / 1000));
      }
    }
  }

  bool owns_ = false;
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::unique_ptr<MpiSession> MpiSession::open(int rank, int size, int64_t deadline_ms) {
  return std::make_unique<OpenSession>(rank, size, deadline_ms);
}

}  // namespace vitrine::process_group
