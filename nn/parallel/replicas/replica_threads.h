// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

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

}  // namespace vitrine
