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

void CudaStream::begin_capture() {
  if (!owned_) return Stream::begin_capture();
  VITRINE_ASSERT(capture_ == nullptr, "one capture at a time");
  cuda::avoid_unused_gpu(identity().device.index);
  // Other threads may allocate meanwhile: a loader, for example.
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  capture_ = std::make_unique<Graph>(*this);
  queued_ = true;
}

std::unique_ptr<CapturedWork> CudaStream::end_capture() {
  VITRINE_ASSERT(capture_ != nullptr, "a capture was begun");
  const cuda::DeviceScope scope(identity().device.index);
  std::unique_ptr<Graph> work = std::move(capture_);
  queued_ = true;
  cudaGraph_t graph = nullptr;
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaStreamEndCapture(stream_, &graph));
  const cudaError_t code = cudaGraphInstantiate(&work->executable, graph, 0);
  cudaGraphDestroy(graph);
  VITRINE_CUDA_CHECK_ON(identity().device.index, code);
  return work;
}

void CudaStream::abandon_capture() noexcept {
  if (capture_ == nullptr) return;
  cuda::avoid_unused_gpu(identity().device.index);
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
  capture_.reset();
  queued_ = true;
}

CudaStream::TimePoint* CudaStream::captured_time_point() noexcept {
  Graph& graph = *capture_;
  if (!queued_ && !graph.points.empty()) return graph.points.back();
  const std::lock_guard lock(spans_mutex_);
  TimePoint* const point = next_point();
  if (point == nullptr || cudaEventRecordWithFlags(point->event, stream_, cudaEventRecordExternal) != cudaSuccess) return nullptr;
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

void CudaStream::launch(CapturedWork& work, int64_t step) {
  auto& graph = static_cast<Graph&>(work);
  VITRINE_ASSERT(&graph.stream == this, "a stream launches what it has captured");
  cuda::avoid_unused_gpu(identity().device.index);
  const std::lock_guard lock(spans_mutex_);
  settle_spans_of(graph);
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaGraphLaunch(graph.executable, stream_));
  queued_ = true;
  for (TimePoint* point : graph.points) point->known = false;
  for (TimedSpan span : graph.spans) {
    span.record.info.step = step;
    for (TimePoint* point : {span.begin, span.end}) {
      if (point != nullptr) ++point->users;
    }
    closed_.push_back(span);
  }
}

}  // namespace vitrine
