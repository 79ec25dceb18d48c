// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/parallel/replicas/replica.h"
#include "runtime/comm/communicator.h"
#include "runtime/error.h"

/// Private to nn/parallel.
namespace vitrine {

/// One thread per replica, which issues that replica's work: GPUs are launched concurrently, and each thread calls its
/// own communicator.
class ReplicaThreads {
 public:
  /// start(i) is called first on thread i; it must not throw.
  ReplicaThreads(int count, const std::function<void(int)>& start);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Calls work(i) on thread i, on all threads at once, and returns when all are done. `work` must not throw.
  void run(const std::function<void(int)>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The replicas of this process, the threads that issue their work, the communicators between them, and what happens
/// when one fails.
class ReplicaGroup {
 public:
  /// Allocates the replicas and opens the communicators.
  explicit ReplicaGroup(const EngineSetup& setup);
  /// Calls wait_for_end().
  ~ReplicaGroup();
  ReplicaGroup(const ReplicaGroup&) = delete;
  ReplicaGroup& operator=(const ReplicaGroup&) = delete;
  /// Waits until the devices are idle. Nothing can be issued afterwards.
  void wait_for_end() noexcept;

  int size() const { return static_cast<int>(replicas_.size()); }
  Replica& operator[](int i) { return *replicas_[static_cast<size_t>(i)]; }
  auto begin() { return replicas_.begin(); }
  auto end() { return replicas_.end(); }
  /// Samples of the current micro-batch on the devices before `ordinal`.
  int64_t samples_before(int ordinal) const;

  /// Work that begins here is new if such work has begun less than twice: then, and outside such work, several GPUs
  /// keep in step (RanksInStep).
  ///   kind  with equal numbers, the same kernels run: sizes of batches
  void begin_work(int64_t kind) { keep_in_step(begun_[kind]++ < 2); }
  void end_work() { keep_in_step(true); }

  /// Whether every replica runs the optimizer.
  bool all_update() const;

  /// Calls `work` for every replica; an exception gets the device's name as prefix.
  template <class Work>
  void for_each(const Work& work) {
    for (auto& r : replicas_) {
      try {
        work(*r);
      } catch (...) {
        rethrow_with_prefix(std::current_exception(), r->device.name() + ": ");
      }
    }
  }
  /// The same on a thread for each replica, all at once, where there are such threads; else in order. For work that
  /// touches no other replica. When it fails on one, aborts the collectives of the others and throws the root cause.
  void for_each_at_once(const std::function<void(Replica&)>& work);
  /// Gathers the parameters that other replicas have updated, if they are stale here, as part of `step`. With several
  /// processes all call it.
  void finish_gathering(int64_t step);
  /// for_each_at_once() on the replicas that run the optimizer.
  void for_each_updating(const std::function<void(Replica&)>& work);

  /// Description of the communicators, for logs; empty if there are none.
  std::string communicator() const { return communicators_ ? (*communicators_)[0]->description() : std::string(); }
  /// Whether issued work might wait for other devices that never come, so that the host must poll.
  bool can_get_stuck() const { return setup_.on_gpus() && communicators_ != nullptr; }
  /// True when a GPU is lost or the communicators are broken: issued work will not end by itself. A fault that a kernel
  /// raised is neither.
  bool is_stuck() const { return is_aborted() || any_lost(); }

  // recovery.cpp
  /// Calls `issue`. When it throws, recovers and throws the root cause.
  void issue_or_recover(const std::function<void()>& issue);
  /// Recovers and throws the root cause when an operation has failed on some device.
  ///   asks_gpus  false: only faults of kernels and failures of communicators are found, without a call of CUDA
  void throw_if_failed(bool asks_gpus = true);
  /// `forget` is called by recoveries, with idle streams: it drops what is held of the steps in flight, and makes
  /// events again, because those that a failed stream recorded would fail their waiters.
  void on_recovery(std::function<void()> forget) { recovery_handlers_.push_back(std::move(forget)); }

 private:
  using Communicators = std::vector<std::unique_ptr<Communicator>>;
  struct Empty {};  // a constructed group without replicas, so that the destructor cleans up what the constructor began
  ReplicaGroup(const EngineSetup& setup, Empty) : setup_(setup) {}
  void open_communicators();
  void keep_in_step(bool in_step);
  void close_communicators() noexcept;
  /// Opens aborted communicators again. Those of the caller and those with other processes cannot be opened again: they
  /// stay aborted, and calls throw their reason.
  void reopen_communicators();
  /// Aborts pending collectives, waits for all devices, drops the steps in flight, and makes the replicas usable again.
  /// Returns the root cause with its device's name as prefix.
  ///   known  the reason to give up, if there is one; it is the root cause unless it is a mere consequence of another
  ///          failure
  /// With several processes a failure is final and reported to the others.
  std::exception_ptr recover(const std::exception_ptr& known);
  /// Copies replica 0's running statistics to the others after an aborted step, in which only some may have updated
  /// theirs.
  void equalize_buffers();
  bool is_aborted() const { return communicators_ && !(*communicators_)[0]->failure().empty(); }
  bool any_lost() const;

  const EngineSetup& setup_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::unique_ptr<ReplicaThreads> threads_;  // several GPUs only
  std::shared_ptr<Communicators> communicators_;
  /// Aborted ones: spans that have not been taken point to their names.
  std::vector<std::shared_ptr<Communicators>> retired_;
  std::vector<std::function<void()>> recovery_handlers_;
  std::map<int64_t, int64_t> begun_;  // begin_work() by kind
};

/// Reports a failure of this process to the other ones, unless they know or soon find another cause.
void report_failure(const EngineSetup& setup, const std::exception_ptr& error);

}  // namespace vitrine
