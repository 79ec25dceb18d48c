// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>
#include <vector>

#include "nn/parallel/replicas/replica_group.h"
#include "runtime/clock.h"

namespace vitrine {
namespace {

// Waking a thread takes tens of microseconds, as long as issuing a small layer, and the rounds of a step follow each
// other closely.
constexpr int64_t kSpinNs = 30000;

/// Waits until `value` differs from `old` and returns it. With `spin` (when there are spare cores) it spins for a while
/// before it sleeps.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, bool spin) {
  const int64_t until = spin ? steady_now_ns() + kSpinNs : 0;
  uint32_t now = value.load(std::memory_order_acquire);
  while (now == old && spin && steady_now_ns() < until) now = value.load(std::memory_order_acquire);
  while (now == old) {
    value.wait(old, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

}  // namespace

struct ReplicaThreads::State {
  std::vector<std::thread> threads;
  const std::function<void(int)>* work = nullptr;  // null: end
  std::atomic<uint32_t> round{0};
  std::atomic<uint32_t> done{0};
  bool spin = false;

  void serve(int index) {
    uint32_t seen = 0;
    while (true) {
      seen = wait_for_change(round, seen, spin);
      if (work == nullptr) return;
      (*work)(index);
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == threads.size()) done.notify_one();
    }
  }
  void start_round(const std::function<void(int)>* next) {
    work = next;
    done.store(0, std::memory_order_relaxed);
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
  }
};

ReplicaThreads::ReplicaThreads(int count, const std::function<void(int)>& start) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.spin = std::thread::hardware_concurrency() > static_cast<unsigned>(count);
  s.threads.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) s.threads[static_cast<size_t>(i)] = std::thread([&s, i] { s.serve(i); });
  run(start);
}

ReplicaThreads::~ReplicaThreads() {
  state_->start_round(nullptr);
  for (std::thread& thread : state_->threads) thread.join();
}

void ReplicaThreads::run(const std::function<void(int)>& work) {
  State& s = *state_;
  s.start_round(&work);
  const auto count = static_cast<uint32_t>(s.threads.size());
  uint32_t done = s.done.load(std::memory_order_acquire);
  while (done != count) done = wait_for_change(s.done, done, s.spin);
}

}  // namespace vitrine
