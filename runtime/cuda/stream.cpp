// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/stream.h"

#include "runtime/cuda/check.h"

namespace vitrine {
namespace {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device) : device_(device) {
    const cuda::DeviceScope scope(device_);
    VITRINE_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  cudaEvent_t native() const { return event_; }

 private:
  void do_synchronize() override { VITRINE_CUDA_CHECK(cudaEventSynchronize(event_)); }

  int device_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

CudaStream::CudaStream(Identity identity, OrderChecker* checker) : Stream(identity, checker) {
  const cuda::DeviceScope scope(identity.device.index);
  VITRINE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  VITRINE_CUDA_CHECK(cudaEventCreate(&anchor_));
  VITRINE_CUDA_CHECK(cudaEventRecord(anchor_, stream_));
  VITRINE_CUDA_CHECK(cudaEventSynchronize(anchor_));
  anchor_ns_ = steady_now_ns();
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  for (const auto* spans : {&open_, &closed_}) {
    for (const TimedSpan& span : *spans) {
      cudaEventDestroy(span.begin);
      if (span.end != nullptr) cudaEventDestroy(span.end);
    }
  }
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
  cudaEventDestroy(anchor_);
  cudaStreamDestroy(stream_);
}

std::unique_ptr<Event> CudaStream::make_event() { return std::make_unique<CudaEvent>(identity().device.index); }

void CudaStream::do_record(Event& event) { VITRINE_CUDA_CHECK(cudaEventRecord(static_cast<CudaEvent&>(event).native(), stream_)); }

void CudaStream::do_wait(Event& event) { VITRINE_CUDA_CHECK(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).native(), 0)); }

void CudaStream::do_synchronize() {
  const cudaError_t code = cudaStreamSynchronize(stream_);
  if (code != cudaSuccess && handler_) handler_(cudaGetErrorString(code));
  VITRINE_CUDA_CHECK(code);
}

bool CudaStream::failed() const {
  const cudaError_t code = cudaStreamQuery(stream_);
  if (code == cudaSuccess || code == cudaErrorNotReady) return false;
  if (handler_) handler_(cudaGetErrorString(code));
  return true;
}

cudaEvent_t CudaStream::timing_event() {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    const cuda::DeviceScope scope(identity().device.index);
    VITRINE_CUDA_CHECK(cudaEventCreate(&event));
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  VITRINE_CUDA_CHECK(cudaEventRecord(event, stream_));
  return event;
}

void CudaStream::begin_span(const SpanInfo& info) {
  TimedSpan span;
  span.record.info = info;
  span.record.depth = static_cast<int>(open_.size());
  span.begin = timing_event();
  open_.push_back(span);
}

void CudaStream::end_span(int64_t bytes) {
  TimedSpan span = open_.back();
  open_.pop_back();
  span.record.bytes = bytes;
  span.end = timing_event();
  closed_.push_back(span);
}

std::vector<SpanRecord> CudaStream::take_spans() {
  const auto time_of = [this](cudaEvent_t event) {
    float milliseconds = 0;
    VITRINE_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, anchor_, event));
    return anchor_ns_ + static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  };
  std::vector<SpanRecord> records;
  records.reserve(closed_.size());
  for (const TimedSpan& span : closed_) {
    SpanRecord record = span.record;
    record.begin_ns = time_of(span.begin);
    record.end_ns = time_of(span.end);
    records.push_back(record);
    spare_.push_back(span.begin);
    spare_.push_back(span.end);
  }
  closed_.clear();
  return records;
}

}  // namespace vitrine
