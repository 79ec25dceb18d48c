// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <vitrine/runtime/stream.h>

namespace vitrine {

/// A CPU device's stream: a worker thread that runs queued work in order, with CUDA's rules. The queue orders host before worker and never
/// worker before host, so that ThreadSanitizer sees every missing event.
class CpuStream final : public Stream {
 public:
  struct Options {
    std::vector<int> cores;  // the worker's affinity; empty: as inherited
    int thread_count = 1;    // of the OpenMP team that work on this stream uses
    TraceLevel trace = TraceLevel::off;
  };
  CpuStream(Identity identity, OrderChecker* checker, Options options);
  /// Runs what is queued, then ends the worker.
  ~CpuStream() override;

  void begin_span(const SpanInfo& info) override;
  void end_span(int64_t bytes) override;
  std::vector<SpanRecord> take_spans() override;
  std::vector<SpanRecord> poll_spans() override;
  bool failed() const override;
  void set_error_handler(std::function<void(const std::string&)> handler) override;
  void begin_synchronize() override;

  /// What a task is part of, for messages. The names must outlive it.
  struct Origin {
    const char* operation = "";
    const char* layer = "";
  };
  /// Queues a callable without arguments. It may throw: the stream is then in error (see Stream).
  template <class F>
  void enqueue(F f, Origin origin = {}) {
    Task* const task = make_task(std::move(f));
    task->origin = origin;
    push(task);
  }

  /// Called by work that runs on this worker: a nested wait span from `begin_ns` to `end_ns`.
  void note_wait(int64_t begin_ns, int64_t end_ns, const char* cause);

  struct Task {
    Task() = default;
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    virtual ~Task() = default;
    virtual void run() = 0;
    /// Lets go of what the callable holds; the task itself stays until the next one is known.
    virtual void dispose() noexcept {}
    Origin origin;
    bool runs_after_error = false;
    Task* next = nullptr;
    void* passed_block = nullptr;  // memory of earlier tasks only: freed by the worker when it comes to this one
  };

 private:
  template <class F>
  struct FunctionTask final : Task {
    explicit FunctionTask(F f) : function(std::move(f)) {}
    void run() override { (*function)(); }
    void dispose() noexcept override { function.reset(); }
    std::optional<F> function;
  };
  /// Work that a stream in error still does: events, spans, synchronisation.
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
  /// Room for a task in the current block. One by one, tasks made on the host and freed on the workers would contend for malloc's locks.
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
