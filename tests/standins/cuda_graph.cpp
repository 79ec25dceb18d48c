// SPDX-License-Identifier: Apache-2.0
// Stand-in for the CUDA runtime: captures. Streams that are captured keep their work instead of running it;
// cuda_graph_launch.cpp runs it.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tests/standins/machine.h"

namespace standins = vitrine::standins;
using standins::Call;
using standins::Capture;
using standins::Device;
using standins::explain;
using standins::note_call;
using standins::set_last_error;
using standins::state;

namespace vitrine::standins {
namespace {

std::atomic<int> active_captures{0};
std::mutex captures_mutex;
std::vector<Capture*> captures;  // guarded by captures_mutex
thread_local int own_captures = 0;

struct CaptureCalls {
  int64_t made = 0, failing = 0;  // failing: the one that fails; 0: none
};
CaptureCalls& calls_of_this_thread() {
  thread_local CaptureCalls calls = [] {
    const char* const failing = std::getenv("VITRINE_STANDIN_FAIL_CAPTURE");
    return CaptureCalls{0, failing == nullptr ? 0 : std::atoll(failing)};
  }();
  return calls;
}

}  // namespace

void fail_capture_call(int64_t n) { calls_of_this_thread() = {0, n}; }
int64_t capture_calls() { return calls_of_this_thread().made; }
bool is_capturing() { return own_captures > 0; }

bool fails_in_capture() {
  CaptureCalls& calls = calls_of_this_thread();
  if (++calls.made != calls.failing) return false;
  const std::lock_guard lock(captures_mutex);
  for (Capture* capture : captures)
    capture->invalid = capture->invalid || capture->thread == std::this_thread::get_id();
  return true;
}

bool capture_forbids(const char* call) {
  if (active_captures.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(captures_mutex);
  bool forbidden = false;
  for (Capture* capture : captures) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread != std::this_thread::get_id()) continue;
    explain("%s: a stream is being captured, and this call is not allowed meanwhile; the capture is invalid", call);
    capture->invalid = true;
    forbidden = true;
  }
  return forbidden;
}

cudaError_t forbid_on_captured(cudaStream_t stream, const char* call) {
  if (stream->capture == nullptr) return cudaSuccess;
  explain("%s: the stream is being captured: its work does not run, so nothing can wait for it; the capture is invalid",
          call);
  stream->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t capture_error(cudaStream_t stream) {
  return stream->capture != nullptr && stream->capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

void add_node(cudaStream_t stream, GraphNode node) {
  Capture& capture = *stream->capture;
  node.stream = stream;
  node.before = stream->captured_before;
  capture.nodes.push_back(std::move(node));
  stream->captured_before[stream] = ++capture.added[stream];
}

cudaError_t join_capture(cudaStream_t stream, cudaEvent_t event) {
  const std::shared_ptr<Capture> capture = event->captured;
  if (capture->ended) {
    explain("cudaStreamWaitEvent: the event was recorded in a capture that has ended");
    if (stream->capture != nullptr) stream->capture->invalid = true;
    return cudaErrorCapturedEvent;
  }
  if (stream->capture != nullptr && stream->capture != capture) {
    explain("cudaStreamWaitEvent: the event was recorded in another capture than that of the stream; both are invalid");
    stream->capture->invalid = capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (stream->capture == nullptr) {
    stream->capture = capture;
    stream->captured_before.clear();
    capture->streams.push_back(stream);
  }
  for (const auto& [other, count] : event->captured_before) {
    size_t& before = stream->captured_before[other];
    before = std::max(before, count);
  }
  return cudaSuccess;
}

namespace {

/// Takes the streams out of the capture. Returns false, with an explanation, if the origin does not come after all
/// nodes.
bool leave_capture(Capture& capture, const CapturedBefore& joined) {
  capture.ended = true;
  for (cudaStream_t stream : capture.streams) {
    stream->capture.reset();
    stream->captured_before.clear();
  }
  for (const auto& [stream, count] : capture.added) {
    const auto at = joined.find(stream);
    if (at != joined.end() && at->second == count) continue;
    explain(
        "cudaStreamEndCapture: a stream that took part has work after the last event for which the stream of the "
        "capture waited");
    return false;
  }
  return true;
}

}  // namespace

}  // namespace vitrine::standins

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!standins::is_live(stream, "cudaStreamIsCapturing")) return set_last_error(cudaErrorInvalidResourceHandle);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaStreamBeginCapture")) return set_last_error(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return set_last_error(cudaErrorIllegalState);
  if (standins::fails_in_capture()) return set_last_error(cudaErrorStreamCaptureUnsupported);
  ++standins::own_captures;
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->origin = stream;
  stream->capture->streams = {stream};
  stream->captured_before.clear();
  const std::lock_guard lock(standins::captures_mutex);
  standins::captures.push_back(stream->capture.get());
  standins::active_captures.fetch_add(1, std::memory_order_relaxed);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaStreamEndCapture")) return set_last_error(cudaErrorInvalidResourceHandle);
  *graph = nullptr;
  if (stream->capture == nullptr) return set_last_error(cudaErrorIllegalState);
  if (stream->capture->origin != stream) {
    explain("cudaStreamEndCapture: the capture began on another stream");
    stream->capture->invalid = true;
    return set_last_error(cudaErrorStreamCaptureUnmatched);
  }
  if (stream->capture->mode != cudaStreamCaptureModeRelaxed && stream->capture->thread != std::this_thread::get_id()) {
    explain("cudaStreamEndCapture: another thread began the capture");
    return set_last_error(cudaErrorStreamCaptureWrongThread);
  }
  --standins::own_captures;
  const std::shared_ptr<Capture> capture = stream->capture;
  const standins::CapturedBefore joined = stream->captured_before;
  const bool all_joined = standins::leave_capture(*capture, joined);
  {
    const std::lock_guard lock(standins::captures_mutex);
    std::erase(standins::captures, capture.get());
    standins::active_captures.fetch_sub(1, std::memory_order_relaxed);
  }
  if (capture->invalid || !all_joined) {
    capture->nodes.clear();
    return set_last_error(capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
  }
  auto* const made = new CUgraph_st{stream->device, nullptr, {}};
  for (standins::GraphNode& node : capture->nodes) {
    if (node.owner != nullptr) made->owners.push_back(std::move(node.owner));
  }
  made->work = std::make_shared<const standins::GraphWork>(standins::graph_work(*capture, joined));
  *graph = made;
  const std::unique_lock lock(state().mutex);
  state().graphs.insert(made);
  return cudaSuccess;
}
