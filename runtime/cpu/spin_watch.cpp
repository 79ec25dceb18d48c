// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/spin_watch.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <pthread.h>

#include "runtime/cpu/affinity.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {

std::optional<SchedulerTimes> scheduler_times(const std::string& proc) {
  SchedulerTimes times;
  bool any = false;
  std::error_code error;
  for (std::filesystem::directory_iterator at(proc + "/self/task", error), end; !error && at != end;
       at.increment(error)) {
    int64_t running_ns = 0, waiting_ns = 0;
    if (!(std::ifstream(at->path() / "schedstat") >> running_ns >> waiting_ns)) continue;  // the thread has just ended
    any = true;
    times.running_s += static_cast<double>(running_ns) * 1e-9;
    times.waiting_s += static_cast<double>(waiting_ns) * 1e-9;
  }
  return any ? std::optional(times) : std::nullopt;
}

bool SpinRule::sample(double waiting_share) {
  const bool against = sleeps_soon_ ? waiting_share < kFree : waiting_share > kShared;
  against_ = against ? against_ + 1 : 0;
  if (against_ == (sleeps_soon_ ? kFreeSamples : kSharedSamples)) {
    sleeps_soon_ = !sleeps_soon_;
    against_ = 0;
  }
  return sleeps_soon_;
}

SleepingTeam::SleepingTeam() {
  leader_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "vitrine-sleep");
    [[maybe_unused]] const int threads = static_cast<int>(available_cores().size()) + 1;
    std::atomic<int> started{0};
#pragma omp parallel num_threads(threads)
    started.fetch_add(1, std::memory_order_relaxed);
    std::unique_lock lock(mutex_);
    size_ = started.load(std::memory_order_relaxed);
    wakes_.notify_all();
    wakes_.wait(lock, [this] { return ends_; });  // the team ends with this thread
  });
  std::unique_lock lock(mutex_);
  wakes_.wait(lock, [this] { return size_ > 0; });
}

SleepingTeam::~SleepingTeam() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_all();
  leader_.join();
}

std::unique_ptr<SpinWatch> SpinWatch::start() {
#ifdef _OPENMP
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr && scheduler_times()) {
    return std::unique_ptr<SpinWatch>(new SpinWatch);
  }
#endif
  return nullptr;
}

SpinWatch::SpinWatch() : thread_([this] { run(); }) {}

SpinWatch::~SpinWatch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wakes_.notify_all();
  thread_.join();
}

void SpinWatch::run() {
  pthread_setname_np(pthread_self(), "vitrine-watch");
  SpinRule rule;
  std::unique_ptr<SleepingTeam> team;
  std::optional<SchedulerTimes> before = scheduler_times();
  std::unique_lock lock(mutex_);
  while (!wakes_.wait_for(lock, std::chrono::milliseconds(kPeriodMs), [this] { return stops_; })) {
    const std::optional<SchedulerTimes> now = scheduler_times();
    if (!before || !now) continue;
    const double running = now->running_s - before->running_s, waiting = now->waiting_s - before->waiting_s;
    before = now;
    // The times of threads that have ended are lost; an idle process gives no information about its cores.
    if (running < 0 || waiting < 0 || running + waiting < 0.1e-3 * kPeriodMs) continue;
    const bool sleeps_soon = rule.sample(waiting / (running + waiting));
    if (sleeps_soon && !team) team = std::make_unique<SleepingTeam>();
    if (!sleeps_soon) team.reset();
  }
}

}  // namespace vitrine::cpu
