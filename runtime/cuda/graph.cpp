// SPDX-License-Identifier: Apache-2.0
// Captured work of a GPU's stream: CUDA graphs, and their spans.
#include <utility>

#include "runtime/cuda/check.h"
#include "runtime/cuda/stream.h"
#include "runtime/error.h"

namespace vitrine {

CudaStream::Graph::~Graph() {
  cuda::avoid_unused_gpu(stream.identity().device.index);
  if (executable != nullptr && cudaGraphExecDestroy(executable) != cudaSuccess) cudaGetLastError();
  const std::lock_guard lock(stream.spans_mutex_);
  for (TimePoint* point : points) {
    point->in_graph = false;
    stream.release(point);
  }
}

void CudaStream::begin_capture(std::span<Stream* const> joined) {
  if (!owned_) return Stream::begin_capture(joined);
  VITRINE_ASSERT(capture_ == nullptr, "one capture at a time");
  auto graph = std::make_unique<Graph>(*this);
  for (Stream* other : joined) {
    auto& stream = static_cast<CudaStream&>(*other);
    if (!stream.owned_) return other->begin_capture({});
    VITRINE_ASSERT(stream.identity().device.index == identity().device.index, "a capture has streams of one GPU");
    VITRINE_ASSERT(stream.capture_ == nullptr, "one capture at a time");
    graph->joined.push_back(std::make_unique<Graph>(stream));
    graph->joined.back()->done = stream.make_event();
  }
  if (!joined.empty()) graph->forked = make_event();
  cuda::avoid_unused_gpu(identity().device.index);
  // Other threads, such as a loader's or NCCL's, may allocate during the capture.
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  own_capture_ = std::move(graph);
  capture_ = own_capture_.get();
  queued_ = true;
  if (joined.empty()) return;
  try {
    do_record(*capture_->forked);
    for (const auto& part : capture_->joined) {
      part->stream.do_wait(*capture_->forked);
      part->stream.capture_ = part.get();
    }
  } catch (...) {
    abandon_capture();
    throw;
  }
}

std::unique_ptr<CudaStream::Graph> CudaStream::leave_capture() noexcept {
  for (const auto& part : own_capture_->joined) {
    part->stream.capture_ = nullptr;
    part->stream.queued_ = true;
  }
  capture_ = nullptr;
  queued_ = true;
  return std::move(own_capture_);
}

std::unique_ptr<CapturedWork> CudaStream::end_capture() {
  VITRINE_ASSERT(own_capture_ != nullptr, "a capture was begun");
  const cuda::DeviceScope scope(identity().device.index);
  try {
    for (const auto& part : capture_->joined) {
      part->stream.do_record(*part->done);
      do_wait(*part->done);
    }
  } catch (...) {
    abandon_capture();
    throw;
  }
  std::unique_ptr<Graph> work = leave_capture();
  cudaGraph_t graph = nullptr;
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaStreamEndCapture(stream_, &graph));
  const cudaError_t code = cudaGraphInstantiate(&work->executable, graph, 0);
  cudaGraphDestroy(graph);
  VITRINE_CUDA_CHECK_ON(identity().device.index, code);
  return work;
}

void CudaStream::abandon_capture() noexcept {
  if (own_capture_ == nullptr) return;
  cuda::avoid_unused_gpu(identity().device.index);
  const std::unique_ptr<Graph> work = leave_capture();
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
}

CudaStream::TimePoint* CudaStream::captured_time_point() noexcept {
  Graph& graph = *capture_;
  if (!queued_ && !graph.points.empty()) return graph.points.back();
  const std::lock_guard lock(spans_mutex_);
  TimePoint* const point = next_point();
  if (point == nullptr || cudaEventRecordWithFlags(point->event, stream_, cudaEventRecordExternal) != cudaSuccess)
    return nullptr;
  spare_.pop_back();
  ++taken_;
  point->users = 1;
  point->in_graph = true;
  graph.points.push_back(point);
  queued_ = false;
  return point;
}

bool CudaStream::add_to_capture(const TimedSpan& span) {
  if (capture_ == nullptr) return false;
  capture_->spans.push_back(span);
  return true;
}

void CudaStream::settle_spans_of(Graph& graph) {
  const auto in_use = [&] {
    for (const TimePoint* point : graph.points) {
      if (point->users > 1) return true;
    }
    return false;
  };
  if (in_use()) settle_spans();
  if (!in_use()) return;
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaEventSynchronize(graph.points.back()->event));
  settle_spans();
}

void CudaStream::add_spans_of(Graph& graph, int64_t step) {
  const std::lock_guard lock(spans_mutex_);
  for (TimePoint* point : graph.points) point->known = false;
  for (TimedSpan span : graph.spans) {
    span.record.info.step = step;
    for (TimePoint* point : {span.begin, span.end}) {
      if (point != nullptr) ++point->users;
    }
    closed_.push_back(span);
  }
}

void CudaStream::launch(CapturedWork& work, int64_t step) {
  auto& graph = static_cast<Graph&>(work);
  VITRINE_ASSERT(&graph.stream == this, "a stream launches what it has captured");
  cuda::avoid_unused_gpu(identity().device.index);
  std::vector<Graph*> parts = {&graph};
  for (const auto& part : graph.joined) parts.push_back(part.get());
  for (Graph* part : parts) {
    const std::lock_guard lock(part->stream.spans_mutex_);
    part->stream.settle_spans_of(*part);
  }
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaGraphLaunch(graph.executable, stream_));
  queued_ = true;
  for (Graph* part : parts) part->stream.add_spans_of(*part, step);
}

}  // namespace vitrine
