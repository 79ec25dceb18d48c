// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cuda/native.h"
#include "runtime/stream.h"
#include "runtime/trace/span.h"

namespace vitrine {

/// Stream of a GPU. Spans are timed by events against an anchor, so tracing adds no synchronization; spans are NVTX
/// ranges too. Events are reused, and spans that begin or end one after the other with no work in between share one: at
/// the default level, recording them is most of tracing's cost. Private, so that public headers need no CUDA types.
///
/// A GPU reports failures only when it is queried, which failed() and synchronize() do. An error of CUDA itself (for
/// example, an illegal address) calls the error handler and is permanent: the process must be restarted. A fault that a
/// kernel raised (see cuda::Fault) is reported once and cleared; later work continues, so peers need not be woken and
/// the handler is not called.
class CudaStream final : public Stream {
 public:
  /// given  a cudaStream_t of this GPU, kept alive by the caller; null: creates a non-blocking stream
  CudaStream(Identity identity, OrderChecker* checker, cudaStream_t given = nullptr);
  ~CudaStream() override;

  /// The stream, to queue work on it.
  cudaStream_t native() {
    queued_ = true;
    return stream_;
  }
  /// The slot for faults with this `message`; created by the first call.
  cuda::Fault* fault_slot(cuda::FaultMessage message);

  void check_owner(const void* data) override;
  bool can_capture() const override { return owned_; }
  using Stream::begin_capture;
  void begin_capture(std::span<Stream* const> joined) override;
  std::unique_ptr<CapturedWork> end_capture() override;
  void abandon_capture() noexcept override;
  void launch(CapturedWork& work, int64_t step) override;
  int enter() override;
  void leave(int previous) noexcept override;
  void begin_span(const SpanInfo& info) override;
  void end_span(const SpanBytes& bytes) override;
  std::vector<SpanRecord> take_spans() override;
  std::vector<SpanRecord> poll_spans() override;
  bool failed() const override;
  bool has_fault() const override { return !raised_fault().empty(); }
  bool lost() const override;
  void set_error_handler(std::function<void(const Reason&)> handler) override { handler_ = std::move(handler); }

 private:
  /// A point in the stream's work whose time is known once it has been reached.
  struct TimePoint {
    cudaEvent_t event = nullptr;
    int64_t issued_ns = 0;  // on the host's clock
    int64_t time_ns = 0;
    bool known = false;  // time_ns
    int users = 0;       // spans, latest_, and the graph that records it
    bool in_graph = false;
  };
  struct TimedSpan {
    SpanRecord record;
    TimePoint *begin = nullptr,
              *end = nullptr;  // null: the event could not be created or recorded, and the span is dropped
  };
  struct Graph final : CapturedWork {
    explicit Graph(CudaStream& owner) : stream(owner) {}
    ~Graph() override;

    CudaStream& stream;
    cudaGraphExec_t executable = nullptr;
    std::vector<TimePoint*> points;              // that each launch records on this stream, in order
    std::vector<TimedSpan> spans;                // of this stream, of each launch
    std::vector<std::unique_ptr<Graph>> joined;  // points and spans of the streams that were captured with it
    std::unique_ptr<Event> forked;               // where a joined stream begins
    std::unique_ptr<Event> done;                 // and ends
  };
  struct FaultSlot {
    cuda::FaultMessage message;
    cuda::Fault* memory;
  };
  std::unique_ptr<Event> do_make_event(EventTiming timing) override;
  void do_record(Event& event) override;
  void do_wait(Event& event) override;
  void do_synchronize() override;
  /// A point after all work queued so far; the latest one if it is that, unless a new one is required.
  TimePoint* time_point(bool required) noexcept;
  /// The next point to record, the last of spare_; null if CUDA creates no event. requires the lock of the spans
  TimePoint* next_point() noexcept;
  /// Creates events until there are `count` points. requires the lock of the spans
  void create_points(size_t count) noexcept;
  /// Notes the step of a span. Events are created at the beginning of the second step, for as many steps as can be
  /// unsettled at a time.
  void note_step(int64_t step) noexcept;
  /// The same in the capture: a node that each launch runs.
  TimePoint* captured_time_point() noexcept;
  /// Keeps a closed span for the launches of the work that is being captured; false if none is.
  bool add_to_capture(const TimedSpan& span);
  /// Takes this stream and those that were joined to it out of the capture, and returns its graph.
  std::unique_ptr<Graph> leave_capture() noexcept;
  /// Waits for the spans of this stream of the latest launch of the graph and settles them. requires the lock of the
  /// spans
  void settle_spans_of(Graph& graph);
  /// Closes this stream's spans of a launch.
  void add_spans_of(Graph& graph, int64_t step);
  /// Ends one use. requires the lock of the spans
  void release(TimePoint* point) noexcept;
  void set_anchor();
  /// Turns the closed spans whose work is done into records, and releases their events. requires the lock of the spans
  void settle_spans() noexcept;
  /// Finds the time of a point that has been reached. False if CUDA does not report it.
  bool find_time(TimePoint& point) noexcept;
  /// Message of a raised fault, or empty.
  std::string raised_fault() const;

  cudaStream_t stream_ = nullptr;
  bool owned_;
  std::function<void(const Reason&)> handler_;
  // What a query has reported: not every error stays until synchronize(), which throws it.
  mutable std::atomic<cudaError_t> query_error_{cudaSuccess};
  std::vector<FaultSlot> faults_;
  cudaEvent_t anchor_ = nullptr, next_anchor_ = nullptr;
  int64_t anchor_ns_ = 0;
  std::vector<TimedSpan> open_;
  bool queued_ = false;     // work may have been queued since latest_ was recorded
  std::mutex spans_mutex_;  // guards the following members
  std::deque<TimedSpan> closed_;
  std::deque<TimePoint> points_;  // all that were ever made, each with an event
  std::vector<TimePoint*> spare_;
  int64_t step_ = -1;                  // of the latest span
  size_t taken_ = 0, most_taken_ = 0;  // points of this step, and the most of an earlier one
  TimePoint* latest_ = nullptr;        // the last one recorded
  SpanLog records_;
  std::unique_ptr<Graph> own_capture_;  // that this stream has begun
  Graph* capture_ = nullptr;            // it, or this stream's part of another's; null: work runs
};

}  // namespace vitrine
