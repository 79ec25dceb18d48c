// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/stream.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include "runtime/cpu/futex.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"
#include "runtime/trace/span.h"

namespace vitrine {
namespace {

/// Counts the completed records of an event. Records complete in order: a record on another stream first waits for the
/// previous one.
struct Completion {
  std::atomic<uint32_t> reached{0};
  std::atomic<uint32_t> waiters{0};
  std::atomic<bool> poisoned{false};   // the stream of the last record was in error
  std::atomic<int64_t> reached_ns{0};  // of events with timing

  bool is_reached(uint32_t target) const {
    return static_cast<int32_t>(reached.load(std::memory_order_acquire) - target) >= 0;
  }

  void set(uint32_t target) {
    reached.exchange(target, std::memory_order_release);
    cpu::full_fence();
    if (waiters.load(std::memory_order_relaxed) != 0) cpu::futex_wake_all(reached);
  }

  void wait(uint32_t target) {
    for (int i = 0; i < cpu::kSpinRounds; ++i) {
      if (is_reached(target)) return;
      cpu::relax();
    }
    waiters.fetch_add(1, std::memory_order_relaxed);
    cpu::full_fence();
    while (true) {
      const uint32_t seen = reached.load(std::memory_order_acquire);
      if (static_cast<int32_t>(seen - target) >= 0) break;
      cpu::futex_wait(reached, seen);
    }
    waiters.fetch_sub(1, std::memory_order_relaxed);
  }
};

class CpuEvent final : public Event {
 public:
  std::shared_ptr<Completion> completion = std::make_shared<Completion>();
  uint32_t recorded = 0;
  const Stream* recorded_on = nullptr;
  bool timed = false;

  bool reached() const override { return completion->is_reached(recorded); }

 private:
  void do_synchronize() override { completion->wait(recorded); }
  double do_elapsed_seconds(const Event& start) const override {
    const auto time_ns = [](const Event& event) {
      return static_cast<const CpuEvent&>(event).completion->reached_ns.load(std::memory_order_relaxed);
    };
    return static_cast<double>(time_ns(*this) - time_ns(start)) * 1e-9;
  }
};

}  // namespace

struct CpuStream::Worker {
  // Host side.
  Task* tail = nullptr;
  std::byte* block = nullptr;  // tasks are created in it one after the other
  size_t block_used = 0;
  void* full_block = nullptr;     // passed on with the next task
  bool pushed = false;            // since the last begin_synchronize()
  uint32_t synchronizations = 0;  // begun
  // Shared: the host adds, the worker reads. The host reads only `sleeping` (relaxed) and what synchronize() waits for.
  alignas(64) std::atomic<uint32_t> published{0};
  alignas(64) std::atomic<uint32_t> sleeping{0};
  alignas(64) std::atomic<uint32_t> synchronized{0};  // synchronizations reached
  std::exception_ptr first_error;                     // of the worker, when the last synchronization was reached
  // Worker side.
  alignas(64) Task* last = nullptr;
  uint32_t consumed = 0;
  bool stop = false;
  std::exception_ptr error;
  std::atomic<bool> failed{false};  // for the host, relaxed
  std::function<void(const Reason&)> error_handler;
  SpanLog spans;
  std::vector<SpanRecord> open_spans;
  std::thread thread;

  void run(const Options& options, const std::string& name);
  void wait_for_task();
  void execute(Task& task) noexcept;
  void fail();
  void fail_in(const Origin& origin);
};

namespace {

struct StubTask final : CpuStream::Task {
  void run() override {}
};

void pin_to(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(static_cast<size_t>(core), &set);
  // A core that was taken away after the mask was read is no error: the kernel then keeps the inherited mask.
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

void CpuStream::Worker::wait_for_task() {
  for (int i = 0; i < cpu::kSpinRounds; ++i) {
    if (published.load(std::memory_order_acquire) != consumed) return;
    cpu::relax();
  }
  while (published.load(std::memory_order_acquire) == consumed) {
    sleeping.exchange(1, std::memory_order_relaxed);
    cpu::full_fence();
    cpu::futex_wait(published, consumed);
    sleeping.store(0, std::memory_order_relaxed);
  }
}

void CpuStream::Worker::fail() {
  if (error) return;
  error = std::current_exception();
  failed.store(true, std::memory_order_relaxed);
  if (error_handler) error_handler(reason_of(error));
}

/// Fails with the current error, whose message does not name the operation (View::as) or the layer.
void CpuStream::Worker::fail_in(const Origin& origin) {
  const std::string layer = *origin.layer == '\0' ? "" : fmt::format("layer '{}'", origin.layer);
  try {
    try {
      throw;
    } catch (const OutOfMemory& e) {  // names the operation
      MemoryShortage shortage = e.shortage();
      shortage.layer = origin.layer;
      throw OutOfMemory(layer.empty() ? e.reason() : Reason(layer + ": ") + e.reason(), shortage);
    } catch (const Error&) {
      rethrow_with_prefix(std::current_exception(),
                          fmt::format("{}{}operation '{}': ", layer, layer.empty() ? "" : ", ", origin.operation));
    }
  } catch (...) {
    fail();
  }
}

void CpuStream::Worker::execute(Task& task) noexcept {
  if (!error || task.runs_after_error) {
    const DeclaredScope scope(task.origin.declared.get());
    try {
      task.run();
    } catch (const DtypeError&) {
      fail_in(task.origin);
    } catch (const OutOfMemory&) {
      fail_in(task.origin);
    } catch (...) {
      fail();
    }
  }
  task.dispose();
}

void CpuStream::Worker::run(const Options& options, const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  pin_to(options.cores);
  omp_set_num_threads(options.thread_count);
  while (!stop) {
    wait_for_task();
    Task* task = last->next;
    last->~Task();
    ::operator delete(task->passed_block);
    last = task;
    ++consumed;
    execute(*task);
  }
  last->~Task();
}

CpuStream::CpuStream(Identity identity, OrderChecker* checker, Options options)
    : Stream(identity, checker), worker_(std::make_unique<Worker>()) {
  worker_->tail = worker_->last = new (task_memory(sizeof(StubTask))) StubTask;
  worker_->thread = std::thread(
      [worker = worker_.get(), options = std::move(options), label = name()] { worker->run(options, label); });
}

CpuStream::~CpuStream() {
  enqueue_always([worker = worker_.get()] { worker->stop = true; });
  worker_->thread.join();
  ::operator delete(worker_->block);
}

void* CpuStream::task_memory(size_t bytes) {
  constexpr size_t kBlockBytes = size_t{32} << 10;
  constexpr size_t kAlignment = alignof(std::max_align_t);
  const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (worker_->block == nullptr || worker_->block_used + size > kBlockBytes) {
    auto* const fresh = static_cast<std::byte*>(::operator new(std::max(size, kBlockBytes)));
    worker_->full_block = std::exchange(worker_->block, fresh);
    worker_->block_used = 0;
  }
  void* const place = worker_->block + worker_->block_used;
  worker_->block_used += size;
  return place;
}

void CpuStream::push(Task* task) {
  task->passed_block = std::exchange(worker_->full_block, nullptr);
  worker_->tail->next = task;
  worker_->tail = task;
  worker_->pushed = true;
  worker_->published.fetch_add(1, std::memory_order_release);
  cpu::full_fence();
  if (worker_->sleeping.load(std::memory_order_relaxed) != 0) cpu::futex_wake_all(worker_->published);
}

std::unique_ptr<Event> CpuStream::do_make_event(EventTiming timing) {
  auto event = std::make_unique<CpuEvent>();
  event->timed = timing == EventTiming::on;
  return event;
}

void CpuStream::do_record(Event& event) {
  auto& e = static_cast<CpuEvent&>(event);
  if (e.recorded_on != nullptr && e.recorded_on != this) do_wait(event);
  e.recorded_on = this;
  const uint32_t target = ++e.recorded;
  enqueue_always([completion = e.completion, target, timed = e.timed, worker = worker_.get()] {
    if (timed) completion->reached_ns.store(steady_now_ns(), std::memory_order_relaxed);
    completion->poisoned.store(worker->error != nullptr, std::memory_order_relaxed);
    completion->set(target);
  });
}

void CpuStream::do_wait(Event& event) {
  auto& e = static_cast<CpuEvent&>(event);
  if (e.recorded == 0 || e.recorded_on == this) return;
  enqueue_always([completion = e.completion, target = e.recorded, source = e.recorded_on->name()] {
    completion->wait(target);
    if (completion->poisoned.load(std::memory_order_relaxed)) throw CommError("stopped, because " + source + " failed");
  });
}

// A stream without new tasks since the last call is idle, so its worker keeps sleeping.
void CpuStream::begin_synchronize() {
  if (!worker_->pushed) return;
  enqueue_always([target = ++worker_->synchronizations, worker = worker_.get()] {
    if (!worker->first_error) worker->first_error = std::exchange(worker->error, nullptr);
    worker->failed.store(false, std::memory_order_relaxed);
    worker->synchronized.store(target, std::memory_order_release);
    cpu::futex_wake_all(worker->synchronized);
  });
  worker_->pushed = false;
}

void CpuStream::do_synchronize() {
  begin_synchronize();
  const uint32_t target = worker_->synchronizations;
  const std::atomic<uint32_t>& reached = worker_->synchronized;
  uint32_t seen = reached.load(std::memory_order_acquire);
  for (int i = 0; i < cpu::kSpinRounds && seen != target; ++i) {
    cpu::relax();
    seen = reached.load(std::memory_order_acquire);
  }
  for (; seen != target; seen = reached.load(std::memory_order_acquire)) cpu::futex_wait(reached, seen);
  if (const std::exception_ptr error = std::exchange(worker_->first_error, nullptr)) std::rethrow_exception(error);
}

void CpuStream::begin_span(const SpanInfo& info) {
  enqueue_always([info, worker = worker_.get()] {
    SpanRecord record;
    record.info = info;
    record.depth = static_cast<int>(worker->open_spans.size());
    record.begin_ns = steady_now_ns();
    worker->open_spans.push_back(record);
  });
}

void CpuStream::end_span(const SpanBytes& bytes) {
  enqueue_always([bytes, worker = worker_.get()] {
    SpanRecord record = worker->open_spans.back();
    worker->open_spans.pop_back();
    record.end_ns = steady_now_ns();
    record.bytes = bytes.moved;
    record.buffer_bytes = bytes.buffers;
    worker->spans.add(record);
  });
}

void CpuStream::note_wait(int64_t begin_ns, int64_t end_ns, const char* cause) {
  if (worker_->open_spans.empty()) return;
  SpanRecord record = worker_->open_spans.back();
  record.info.phase = Phase::wait;
  record.info.cause = cause;
  record.begin_ns = begin_ns;
  record.end_ns = end_ns;
  record.bytes = 0;
  ++record.depth;
  worker_->spans.add(record);
}

bool CpuStream::failed() const { return worker_->failed.load(std::memory_order_relaxed); }

void CpuStream::set_error_handler(std::function<void(const Reason&)> handler) {
  enqueue_always([worker = worker_.get(), handler = std::move(handler)] { worker->error_handler = handler; });
}

std::vector<SpanRecord> CpuStream::take_spans() { return worker_->spans.take(); }

std::vector<SpanRecord> CpuStream::poll_spans() { return worker_->spans.take(); }

}  // namespace vitrine
