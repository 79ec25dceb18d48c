// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/stream.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/cuda/check.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/nvtx.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

// Closed spans whose events have not been queried. A query is a CUDA call for each, which can wait while work is
// issued.
constexpr size_t kMostUnsettled = 1024;
// Steps whose points exist at a time: two in flight, the one that is issued, and one more; or two in flight and the
// graphs of even and odd steps.
constexpr size_t kStepsOfPoints = 4;
constexpr int64_t kFarFromAnchorNs = 1'000'000'000;
// Spans that the host opens and closes within this time share an event, so an idle stream's next span does not seem to
// begin at once.
constexpr int64_t kSameTimeNs = 5000;

class CudaEvent final : public Event {
 public:
  CudaEvent(int device, EventTiming timing) : device_(device) {
    const cuda::DeviceScope scope(device);
    VITRINE_CUDA_CHECK(
        cudaEventCreateWithFlags(&event_, timing == EventTiming::on ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~CudaEvent() override {
    cuda::avoid_unused_gpu(device_);
    cudaEventDestroy(event_);
  }
  cudaEvent_t native() const { return event_; }
  bool reached() const override {
    cuda::avoid_unused_gpu(device_);
    const cudaError_t code = cudaEventQuery(event_);
    if (code != cudaSuccess) cudaGetLastError();
    return code != cudaErrorNotReady;
  }

 private:
  void do_synchronize() override {
    cuda::avoid_unused_gpu(device_);
    VITRINE_CUDA_CHECK_ON(device_, cudaEventSynchronize(event_));
  }
  double do_elapsed_seconds(const Event& start) const override {
    float milliseconds = 0;
    cuda::avoid_unused_gpu(device_);
    VITRINE_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(start).event_, event_));
    return static_cast<double>(milliseconds) * 1e-3;
  }

  int device_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

CudaStream::CudaStream(Identity identity, OrderChecker* checker, cudaStream_t given)
    : Stream(identity, checker), stream_(given), owned_(given == nullptr) {
  cuda::initialize_nvtx();
  const cuda::DeviceScope scope(identity.device.index);
  // Blocks of collectives, which other GPUs wait for, start before those of kernels that are queued already.
  int usual = 0, highest = 0;
  VITRINE_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&usual, &highest));
  const int priority = identity.role == StreamRole::communication ? highest : usual;
  if (owned_) VITRINE_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  VITRINE_CUDA_CHECK(cudaEventCreate(&anchor_));
  VITRINE_CUDA_CHECK(cudaEventCreate(&next_anchor_));
  set_anchor();
}

CudaStream::~CudaStream() {
  abandon_capture();
  cuda::avoid_unused_gpu(identity().device.index);
  cudaStreamSynchronize(stream_);
  for (const TimePoint& point : points_) {
    if (point.event != nullptr) cudaEventDestroy(point.event);
  }
  cudaEventDestroy(anchor_);
  cudaEventDestroy(next_anchor_);
  for (const FaultSlot& slot : faults_) cuda::free_pinned(slot.memory);
  if (owned_) cudaStreamDestroy(stream_);
  cudaGetLastError();
}

cuda::Fault* CudaStream::fault_slot(cuda::FaultMessage message) {
  for (const FaultSlot& slot : faults_) {
    if (slot.message == message) return slot.memory;
  }
  // Pinned memory has the same address on the host and on every GPU.
  auto* memory = static_cast<cuda::Fault*>(cuda::allocate_pinned(sizeof(cuda::Fault)));
  *memory = cuda::Fault{};
  faults_.push_back({message, memory});
  return memory;
}

std::unique_ptr<Event> CudaStream::do_make_event(EventTiming timing) {
  return std::make_unique<CudaEvent>(identity().device.index, timing);
}

void CudaStream::check_owner(const void* data) {
  cuda::avoid_unused_gpu(identity().device.index);
  cudaPointerAttributes attributes{};
  VITRINE_CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
  if (attributes.type == cudaMemoryTypeManaged) return;
  if (attributes.type == cudaMemoryTypeDevice && attributes.device == identity().device.index) return;
  throw DeviceError(fmt::format(
      "{}: expected memory of {}, but {} is {}", name(), identity().device.str(), data,
      attributes.type == cudaMemoryTypeDevice ? fmt::format("memory of cuda:{}", attributes.device) : "host memory"));
}

int CudaStream::enter() {
  int previous = 0;
  VITRINE_CUDA_CHECK(cudaGetDevice(&previous));
  if (previous != identity().device.index) VITRINE_CUDA_CHECK(cudaSetDevice(identity().device.index));
  return previous;
}

void CudaStream::leave(int previous) noexcept {
  if (previous >= 0 && previous != identity().device.index) cuda::set_device_back(previous);
}

void CudaStream::do_record(Event& event) {
  cuda::avoid_unused_gpu(identity().device.index);
  VITRINE_CUDA_CHECK_ON(identity().device.index, cudaEventRecord(static_cast<CudaEvent&>(event).native(), stream_));
}

void CudaStream::do_wait(Event& event) {
  queued_ = true;
  cuda::avoid_unused_gpu(identity().device.index);
  VITRINE_CUDA_CHECK_ON(identity().device.index,
                        cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).native(), 0));
}

std::string CudaStream::raised_fault() const {
  for (const FaultSlot& slot : faults_) {
    if (std::atomic_ref<int32_t>(slot.memory->raised).load(std::memory_order_acquire) != 0)
      return slot.message(slot.memory->values);
  }
  return {};
}

void CudaStream::do_synchronize() {
  cuda::avoid_unused_gpu(identity().device.index);
  const cudaError_t code = cudaStreamSynchronize(stream_);
  if (code != cudaSuccess && handler_) handler_(cudaGetErrorString(code));
  const cudaError_t earlier = query_error_.exchange(cudaSuccess);
  VITRINE_CUDA_CHECK_ON(identity().device.index, code);
  cuda::check(earlier, "cudaStreamQuery(stream_)", __FILE_NAME__, __LINE__, identity().device.index);
  const std::string fault = raised_fault();
  if (fault.empty()) return;
  for (const FaultSlot& slot : faults_) *slot.memory = cuda::Fault{};
  throw DataError(fault);
}

bool CudaStream::lost() const {
  cuda::avoid_unused_gpu(identity().device.index);
  const cudaError_t code = cudaStreamQuery(stream_);
  if (code != cudaSuccess) cudaGetLastError();
  if (code == cudaSuccess || code == cudaErrorNotReady) return false;
  query_error_ = code;
  return true;
}

bool CudaStream::failed() const {
  const bool broken = lost();
  const std::string reason = broken ? cudaGetErrorString(query_error_) : raised_fault();
  if (broken && handler_) handler_(reason);
  return !reason.empty();
}

// The GPU reached the anchor between the two readings of the host's clock. A host thread that loses its core in between
// reads too wide a range and tries again. The narrowest range of several tries counts, which bounds the error of every
// span's position by half its width.
void CudaStream::set_anchor() {
  cuda::avoid_unused_gpu(identity().device.index);
  constexpr int kTries = 32;
  constexpr int64_t kNarrow = 100'000;
  int64_t narrowest = INT64_MAX;
  for (int i = 0; i < kTries && narrowest > kNarrow; ++i) {
    const int64_t before = steady_now_ns();
    VITRINE_CUDA_CHECK_ON(identity().device.index, cudaEventRecord(next_anchor_, stream_));
    VITRINE_CUDA_CHECK_ON(identity().device.index, cudaEventSynchronize(next_anchor_));
    const int64_t width = steady_now_ns() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    anchor_ns_ = before + width / 2;
    std::swap(anchor_, next_anchor_);
  }
}

// Spans are closed in destructors: an error of CUDA drops the span and is reported by the work that follows.
CudaStream::TimePoint* CudaStream::time_point(bool required) noexcept {
  if (capture_ != nullptr) return captured_time_point();
  const std::lock_guard lock(spans_mutex_);
  // Work that the caller queues on its own stream is not visible here.
  if (!required && owned_ && !queued_ && latest_ != nullptr && steady_now_ns() - latest_->issued_ns < kSameTimeNs) {
    ++latest_->users;
    return latest_;
  }
  if (spare_.empty()) settle_spans();
  TimePoint* const point = next_point();
  if (point == nullptr || cudaEventRecord(point->event, stream_) != cudaSuccess) return nullptr;
  spare_.pop_back();
  ++taken_;
  if (latest_ != nullptr) release(latest_);
  latest_ = point;
  point->users = 2;
  point->issued_ns = steady_now_ns();
  point->known = false;
  queued_ = false;
  return point;
}

CudaStream::TimePoint* CudaStream::next_point() noexcept {
  cuda::avoid_unused_gpu(identity().device.index);
  if (spare_.empty()) create_points(points_.size() + 1);
  return spare_.empty() ? nullptr : spare_.back();
}

void CudaStream::create_points(size_t count) noexcept {
  int previous = 0;
  if (cudaGetDevice(&previous) != cudaSuccess || cudaSetDevice(identity().device.index) != cudaSuccess) return;
  for (cudaEvent_t event = nullptr; points_.size() < count && cudaEventCreate(&event) == cudaSuccess;) {
    points_.emplace_back().event = event;
    spare_.push_back(&points_.back());
  }
  cuda::set_device_back(previous);
}

void CudaStream::note_step(int64_t step) noexcept {
  if (step == step_) return;
  const std::lock_guard lock(spans_mutex_);
  step_ = step;
  most_taken_ = std::max(most_taken_, std::exchange(taken_, 0));
  // Steps differ by a few points: one that takes more than those before creates none.
  if (points_.size() < (kStepsOfPoints - 1) * most_taken_) create_points(kStepsOfPoints * most_taken_);
}

void CudaStream::release(TimePoint* point) noexcept {
  if (--point->users == 0) spare_.push_back(point);
}

void CudaStream::begin_span(const SpanInfo& info) {
  cuda::push_range(info);
  note_step(info.step);
  TimedSpan span;
  span.record.info = info;
  span.record.depth = static_cast<int>(open_.size());
  // A step begins when the host issues it, not when the step before ended.
  span.begin = time_point(info.phase == Phase::step);
  open_.push_back(span);
}

void CudaStream::end_span(const SpanBytes& bytes) {
  cuda::pop_range();
  TimedSpan span = open_.back();
  open_.pop_back();
  span.record.bytes = bytes.moved;
  span.record.buffer_bytes = bytes.buffers;
  span.end = time_point(false);
  if (add_to_capture(span)) return;
  const std::lock_guard lock(spans_mutex_);
  closed_.push_back(span);
  if (closed_.size() >= kMostUnsettled) settle_spans();
}

bool CudaStream::find_time(TimePoint& point) noexcept {
  if (point.known) return true;
  float milliseconds = 0;
  if (cudaEventElapsedTime(&milliseconds, anchor_, point.event) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  point.time_ns = anchor_ns_ + static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  point.known = true;
  return true;
}

void CudaStream::settle_spans() noexcept {
  cuda::avoid_unused_gpu(identity().device.index);
  for (; !closed_.empty(); closed_.pop_front()) {
    TimedSpan& span = closed_.front();
    if (span.end != nullptr && !span.end->known) {
      const cudaError_t state = cudaEventQuery(span.end->event);
      if (state != cudaSuccess) cudaGetLastError();
      if (state == cudaErrorNotReady) return;
    }
    SpanRecord& record = span.record;
    if (span.begin != nullptr && span.end != nullptr && find_time(*span.begin) && find_time(*span.end)) {
      record.begin_ns = span.begin->time_ns;
      record.end_ns = span.end->time_ns;
      records_.add(record);
      // Elapsed times are floats in milliseconds: near the anchor they resolve half a microsecond. Spans closed later
      // began later, or share this end, whose time is known.
      if (record.depth == 0 && !span.end->in_graph && record.end_ns - anchor_ns_ > kFarFromAnchorNs) {
        std::swap(anchor_, span.end->event);
        anchor_ns_ = record.end_ns;
      }
    }
    for (TimePoint* point : {span.begin, span.end}) {
      if (point != nullptr) release(point);
    }
  }
}

std::vector<SpanRecord> CudaStream::poll_spans() {
  const std::lock_guard lock(spans_mutex_);
  settle_spans();
  return records_.take();
}

std::vector<SpanRecord> CudaStream::take_spans() {
  std::vector<SpanRecord> records = poll_spans();
  const std::lock_guard lock(spans_mutex_);
  if (open_.empty()) set_anchor();
  return records;
}

}  // namespace vitrine
