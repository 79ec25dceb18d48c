// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <vitrine/runtime/order_checker.h>
#include <vitrine/runtime/stream.h>

namespace vitrine {

/// Stream of a CPU device: a worker thread that runs queued work in order, with CUDA's rules. The queue orders the host
/// before the worker and never the worker before the host, so that ThreadSanitizer sees every missing event.
class CpuStream final : public Stream {
 public:
  struct Options {
    std::vector<int> cores;  // affinity of the worker; empty: inherited
    int thread_count = 1;    // of the OpenMP team for work on this stream
    TraceLevel trace = TraceLevel::off;
  };
  CpuStream(Identity identity, OrderChecker* checker, Options options);
  /// Runs the queued work, then ends the worker.
  ~CpuStream() override;

  void begin_span(const SpanInfo& info) override;
  void end_span(const SpanBytes& bytes) override;
  std::vector<SpanRecord> take_spans() override;
  std::vector<SpanRecord> poll_spans() override;
  bool failed() const override;
  void set_error_handler(std::function<void(const Reason&)> handler) override;
  void begin_synchronize() override;

  /// What a task belongs to, for messages and checks. The names must outlive it.
  struct Origin {
    const char* operation = "";
    const char* layer = "";
    std::unique_ptr<const DeclaredMemory> declared = {};  // null: its accesses are not checked
  };
  /// Queues a callable without arguments. If it throws, the stream goes into error (see Stream).
  template <class F>
  void enqueue(F f) {
    enqueue(std::move(f), Origin());
  }
  template <class F>
  void enqueue(F f, Origin origin) {
    Task* const task = make_task(std::move(f));
    task->origin = std::move(origin);
    push(task);
  }

  /// Called by work that runs on this worker: records a nested wait span from `begin_ns` to `end_ns`.
  void note_wait(int64_t begin_ns, int64_t end_ns, const char* cause);

  struct Task {
    Task() = default;
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    virtual ~Task() = default;
    virtual void run() = 0;
    /// Destroys the callable; the task itself stays until the next one is known.
    virtual void dispose() noexcept {}
    Origin origin;
    bool runs_after_error = false;
    Task* next = nullptr;
    void* passed_block = nullptr;  // memory of earlier tasks, which the worker frees when it reaches this one
  };

 private:
  template <class F>
  struct FunctionTask final : Task {
    explicit FunctionTask(F f) : function(std::move(f)) {}
    void run() override { (*function)(); }
    void dispose() noexcept override { function.reset(); }
    std::optional<F> function;
  };
  /// Work that a stream in error still does: events, spans, synchronization.
  template <class F>
  void enqueue_always(F f) {
    Task* const task = make_task(std::move(f));
    task->runs_after_error = true;
    push(task);
  }
  template <class F>
  Task* make_task(F f) {
    static_assert(alignof(FunctionTask<F>) <= alignof(std::max_align_t));
    return new (task_memory(sizeof(FunctionTask<F>))) FunctionTask<F>(std::move(f));
  }
  /// Returns room for a task in the current block. Individual allocations on the host, freed on the workers, would
  /// contend for malloc's locks.
  void* task_memory(size_t bytes);
  void push(Task* task);
  std::unique_ptr<Event> do_make_event(EventTiming timing) override;
  void do_record(Event& event) override;
  void do_wait(Event& event) override;
  void do_synchronize() override;

  struct Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace vitrine
