// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/mpi_session.h"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/failure_detector.h"
#include "runtime/process_group/job_processes.h"
#include "runtime/process_group/rendezvous.h"

namespace vitrine::process_group {
namespace {

constexpr std::chrono::seconds kReportTime{1};
constexpr std::chrono::milliseconds kForwardTime{300};  // in which mpirun forwards the report

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
