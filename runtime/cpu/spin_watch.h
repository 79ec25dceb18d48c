// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace vitrine::cpu {

/// Processor time of all threads of this process, and the time they were ready to run without a core.
struct SchedulerTimes {
  double running_s = 0, waiting_s = 0;
};
/// Reads PROC/self/task/*/schedstat. Nothing if the kernel does not keep them.
std::optional<SchedulerTimes> scheduler_times(const std::string& proc = "/proc");

/// Whether threads that wait for each other should sleep soon instead of spinning: on cores that other work uses, a
/// thread that spins takes the core from the one it waits for.
class SpinRule {
 public:
  static constexpr double kShared = 0.15, kFree = 0.05;  // shares of time without a core
  static constexpr int kSharedSamples = 2, kFreeSamples = 20;
  /// Takes the share of a sample's time in which threads had no core, and returns whether waiting threads should sleep
  /// soon.
  bool sample(double waiting_share);

 private:
  bool sleeps_soon_ = false;
  int against_ = 0;  // consecutive samples against the present answer
};

/// Watches how busy the cores are, every kPeriodMs, and shortens spinning while they are shared. libgomp, whose threads
/// compute our loops and oneDNN's, has no setting for it after the start; but it lets threads spin shortly (100 rounds
/// instead of 300,000) while a process has more OpenMP threads than cores (libgomp's manual, GOMP_SPINCOUNT). So the
/// watch keeps an additional team of sleeping threads meanwhile.
class SpinWatch {
 public:
  static constexpr int kPeriodMs = 100;
  /// Nothing where there is nothing to shorten: without OpenMP, without schedstat, and if the environment sets
  /// OMP_WAIT_POLICY or GOMP_SPINCOUNT.
  static std::unique_ptr<SpinWatch> start();
  ~SpinWatch();
  SpinWatch(const SpinWatch&) = delete;
  SpinWatch& operator=(const SpinWatch&) = delete;

 private:
  SpinWatch();
  void run();

  std::mutex mutex_;
  std::condition_variable wakes_;
  bool stops_ = false;
  std::thread thread_;
};

/// A team of as many OpenMP threads as the process has cores, and one more. They sleep.
class SleepingTeam {
 public:
  SleepingTeam();
  ~SleepingTeam();
  SleepingTeam(const SleepingTeam&) = delete;
  SleepingTeam& operator=(const SleepingTeam&) = delete;

  /// Number of threads; 1 in a build without OpenMP.
  int size() const { return size_; }

 private:
  std::mutex mutex_;
  std::condition_variable wakes_;
  int size_ = 0;
  bool ends_ = false;
  std::thread leader_;
};

}  // namespace vitrine::cpu
