// SPDX-License-Identifier: Apache-2.0
// Stand-in for the CUDA runtime: streams, events, launches.
#include <chrono>
#include <string>
#include <thread>

#include "runtime/cpu/futex.h"
#include "tests/standins/launch.h"
#include "tests/standins/machine.h"

namespace standins = vitrine::standins;
namespace cpu = vitrine::cpu;
using vitrine::standins::Call;
using vitrine::standins::current_device;
using vitrine::standins::Device;
using vitrine::standins::explain;
using vitrine::standins::note_call;
using vitrine::standins::set_last_error;
using vitrine::standins::state;

namespace {

// Spins, then sleeps on `word` until done(); acquires nothing before the caller's own last load.
template <class Done>
void wait_until(const std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers, const Done& done) {
  for (int i = 0; i < cpu::kSpinRounds; ++i) {
    if (done(word.load(std::memory_order_relaxed))) return;
    cpu::relax();
  }
  sleepers.fetch_add(1, std::memory_order_relaxed);
  cpu::full_fence();
  for (uint32_t seen = word.load(std::memory_order_relaxed); !done(seen); seen = word.load(std::memory_order_relaxed))
    cpu::futex_wait(word, seen);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void publish(std::atomic<uint32_t>& word, uint32_t value, const std::atomic<uint32_t>& sleepers) {
  word.exchange(value, std::memory_order_release);
  cpu::full_fence();
  if (sleepers.load(std::memory_order_relaxed) != 0) cpu::futex_wake_all(word);
}

bool is_live(cudaEvent_t event, const char* call) {
  const std::shared_lock lock(state().mutex);
  if (state().events.contains(event)) return true;
  explain("%s: %p is no event, or a destroyed one", call, static_cast<void*>(event));
  return false;
}

cudaError_t device_error(const Device& device) {
  return static_cast<cudaError_t>(device.error.load(std::memory_order_relaxed));
}

}  // namespace

CUstream_st::CUstream_st(Device& on, unsigned stream_flags, int stream_priority)
    : device(on),
      flags(stream_flags),
      priority(stream_priority),
      worker_({{vitrine::Backend::cuda, on.index}}, nullptr, {}) {}

CUstream_st& CUstream_st::branch(size_t number) {
  while (branches_.size() < number) branches_.push_back(std::make_unique<CUstream_st>(device, flags, priority));
  return *branches_[number - 1];
}

void CUstream_st::complete(uint32_t number) { publish(completed_, number, sleepers_); }

bool CUstream_st::is_done() const {
  if (completed_.load(std::memory_order_relaxed) != issued_.load(std::memory_order_relaxed)) return false;
  completed_.load(std::memory_order_acquire);
  return true;
}

void CUstream_st::synchronize() {
  const uint32_t target = issued_.load(std::memory_order_relaxed);
  wait_until(completed_, sleepers_, [target](uint32_t seen) { return static_cast<int32_t>(seen - target) >= 0; });
  completed_.load(std::memory_order_acquire);
}

void CUstream_st::wait_unordered() {
  const uint32_t target = issued_.load(std::memory_order_relaxed);
  wait_until(completed_, sleepers_, [target](uint32_t seen) { return static_cast<int32_t>(seen - target) >= 0; });
}

void CUevent_st::Record::reach() { publish(reached, 1, sleepers); }

void CUevent_st::Record::wait() {
  wait_until(reached, sleepers, [](uint32_t seen) { return seen == 1; });
  reached.load(std::memory_order_acquire);
}

CUevent_st::Record& CUevent_st::fresh_record() {
  for (Record& record : records) {
    if (record.users.load(std::memory_order_relaxed) != 0) continue;
    record.reached.store(0, std::memory_order_relaxed);
    return record;
  }
  return records.emplace_back();
}

CUevent_st::Record& CUevent_st::begin_record() {
  Record& record = fresh_record();
  latest = &record;
  captured.reset();
  record.users.fetch_add(1, std::memory_order_relaxed);
  return record;
}

void CUevent_st::Record::finish(const Device& device) {
  time_ns.store(vitrine::steady_now_ns() + device.simulated_ns.load(std::memory_order_relaxed),
                std::memory_order_relaxed);
  reach();
  users.fetch_sub(1, std::memory_order_release);
}

namespace vitrine::standins {

bool is_live(cudaStream_t stream, const char* call) {
  const std::shared_lock lock(state().mutex);
  if (state().streams.contains(stream)) return true;
  if (stream == nullptr) {
    explain("%s: the stand-in does not support the default stream; pass a stream", call);
  } else {
    explain("%s: %p is no stream, or a destroyed one", call, static_cast<void*>(stream));
  }
  return false;
}

namespace {

std::vector<std::shared_ptr<CUstream_st>> streams_of(int device) {
  std::vector<std::shared_ptr<CUstream_st>> streams;
  const std::shared_lock lock(state().mutex);
  for (const auto& [handle, stream] : state().streams) {
    if (stream->device.index == device) streams.push_back(stream);
  }
  return streams;
}

}  // namespace

void drain(int device) {
  for (const auto& stream : streams_of(device)) stream->synchronize();
}

void load_function(cudaStream_t stream, uint64_t function) {
  Device& device = stream->device;
  if (!state().machine.lazy_loading || stream->capture != nullptr || !device.loaded.insert(function)) return;
  std::atomic<bool>& loading = state().loading[static_cast<size_t>(device.process.load(std::memory_order_relaxed))];
  while (loading.exchange(true, std::memory_order_relaxed)) std::this_thread::sleep_for(std::chrono::microseconds(20));
  for (const auto& busy : streams_of(device.index)) busy->wait_unordered();
  loading.store(false, std::memory_order_relaxed);
}

void drain_all() {
  for (const Device& device : state().devices) {
    if (is_of_this_process(device.index)) drain(device.index);
  }
}

}  // namespace vitrine::standins

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  Device* const device = current_device(code);
  if (device == nullptr) return set_last_error(code);
  auto made = std::make_shared<CUstream_st>(*device, flags, priority);
  *stream = made.get();
  const std::unique_lock lock(state().mutex);
  state().streams.emplace(*stream, std::move(made));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// Unlike CUDA's, it waits for the stream's work.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaStreamDestroy")) return set_last_error(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    cudaGraph_t none = nullptr;
    cudaStreamEndCapture(stream->capture->origin, &none);
  }
  std::shared_ptr<CUstream_st> last;
  {
    const std::unique_lock lock(state().mutex);
    last = std::move(state().streams.extract(stream).mapped());
  }
  return set_last_error(device_error(last->device));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaStreamSynchronize")) return set_last_error(cudaErrorInvalidResourceHandle);
  if (const cudaError_t code = standins::forbid_on_captured(stream, "cudaStreamSynchronize"); code != cudaSuccess)
    return set_last_error(code);
  stream->synchronize();
  return set_last_error(device_error(stream->device));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaStreamQuery")) return set_last_error(cudaErrorInvalidResourceHandle);
  if (const cudaError_t code = standins::forbid_on_captured(stream, "cudaStreamQuery"); code != cudaSuccess)
    return set_last_error(code);
  if (standins::capture_forbids("cudaStreamQuery")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t code = device_error(stream->device); code != cudaSuccess) return set_last_error(code);
  return stream->is_done() ? cudaSuccess : set_last_error(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (note_call(Call::wait)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaStreamWaitEvent") || !is_live(event, "cudaStreamWaitEvent"))
    return set_last_error(cudaErrorInvalidResourceHandle);
  if (const cudaError_t code = device_error(stream->device); code != cudaSuccess) return set_last_error(code);
  if (event->captured != nullptr) return set_last_error(standins::join_capture(stream, event));
  CUevent_st::Record* const record = event->latest;
  if (record == nullptr) return cudaSuccess;
  if (stream->capture != nullptr) {
    explain("cudaStreamWaitEvent: a captured stream cannot wait for an event that was recorded outside its capture");
    stream->capture->invalid = true;
    return set_last_error(cudaErrorStreamCaptureIsolation);
  }
  record->users.fetch_add(1, std::memory_order_relaxed);
  stream->enqueue_always([record] {
    record->wait();
    record->users.fetch_sub(1, std::memory_order_release);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaStreamGetDevice")) return set_last_error(cudaErrorInvalidResourceHandle);
  *device = stream->device.index;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  if (!standins::is_live(stream, "cudaStreamGetFlags")) return set_last_error(cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (!standins::is_live(stream, "cudaStreamGetPriority")) return set_last_error(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaLaunchHostFunc")) return set_last_error(cudaErrorInvalidResourceHandle);
  stream->enqueue([function, data] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (standins::capture_forbids("cudaDeviceSynchronize")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  cudaError_t code = cudaSuccess;
  const Device* const device = current_device(code);
  if (device == nullptr) return set_last_error(code);
  standins::drain(device->index);
  return set_last_error(device_error(*device));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (note_call(Call::create_event)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  Device* const device = current_device(code);
  if (device == nullptr) return set_last_error(code);
  *event = new CUevent_st(*device, flags);
  const std::unique_lock lock(state().mutex);
  state().events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  const std::unique_lock lock(state().mutex);
  if (state().events.erase(event) == 0) {
    explain("cudaEventDestroy: %p is no event, or a destroyed one", static_cast<void*>(event));
    return set_last_error(cudaErrorInvalidResourceHandle);
  }
  state().destroyed_events.emplace_back(event);
  return set_last_error(device_error(event->device));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (!standins::is_live(stream, "cudaEventRecord") || !is_live(event, "cudaEventRecord"))
    return set_last_error(cudaErrorInvalidResourceHandle);
  if (note_call((event->flags & cudaEventDisableTiming) == 0 ? Call::timed_record : Call::record))
    return set_last_error(cudaErrorUnknown);
  if (const cudaError_t code = device_error(stream->device); code != cudaSuccess) return set_last_error(code);
  if (&event->device != &stream->device) {
    explain("cudaEventRecord: the event is of device %d, the stream of device %d", event->device.index,
            stream->device.index);
    return set_last_error(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture != nullptr) {
    // An external record is a node that each launch runs; the event keeps its state until then.
    if ((flags & cudaEventRecordExternal) != 0) {
      standins::add_node(stream, {.event = event});
    } else {
      event->captured = stream->capture;
      event->captured_before = stream->captured_before;
    }
    return set_last_error(standins::capture_error(stream));
  }
  CUevent_st::Record& record = event->begin_record();
  stream->enqueue_always([&record, &device = stream->device] { record.finish(device); });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!is_live(event, "cudaEventSynchronize")) return set_last_error(cudaErrorInvalidResourceHandle);
  if (standins::capture_forbids("cudaEventSynchronize")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  if (event->captured != nullptr) return set_last_error(cudaErrorCapturedEvent);
  if (event->latest != nullptr) event->latest->wait();
  return set_last_error(device_error(event->device));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!is_live(event, "cudaEventQuery")) return set_last_error(cudaErrorInvalidResourceHandle);
  if (standins::capture_forbids("cudaEventQuery")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  if (event->captured != nullptr) return set_last_error(cudaErrorCapturedEvent);
  if (const cudaError_t code = device_error(event->device); code != cudaSuccess) return set_last_error(code);
  if (event->latest == nullptr || event->latest->reached.load(std::memory_order_acquire) == 1) return cudaSuccess;
  return set_last_error(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (!is_live(begin, "cudaEventElapsedTime") || !is_live(end, "cudaEventElapsedTime"))
    return set_last_error(cudaErrorInvalidResourceHandle);
  if (const cudaError_t code = device_error(begin->device); code != cudaSuccess) return set_last_error(code);
  const bool timed = ((begin->flags | end->flags) & cudaEventDisableTiming) == 0;
  if (!timed || &begin->device != &end->device || begin->latest == nullptr || end->latest == nullptr) {
    explain("cudaEventElapsedTime: needs two recorded events with timing, of one device");
    return set_last_error(cudaErrorInvalidResourceHandle);
  }
  for (const cudaEvent_t event : {begin, end}) {
    if (event->latest->reached.load(std::memory_order_acquire) == 0) return set_last_error(cudaErrorNotReady);
  }
  const int64_t begin_ns = begin->latest->time_ns.load(std::memory_order_relaxed),
                end_ns = end->latest->time_ns.load(std::memory_order_relaxed);
  *milliseconds = static_cast<float>(end_ns - begin_ns) * 1e-6F;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

namespace vitrine::standins {

bool fits(dim3 grid, dim3 block) {
  const bool block_fits = block.x >= 1 && block.y >= 1 && block.z >= 1 && block.x <= 1024 && block.y <= 1024 &&
                          block.z <= 64 && uint64_t{block.x} * block.y * block.z <= 1024;
  return block_fits && grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= INT32_MAX && grid.y <= 65535 &&
         grid.z <= 65535;
}

cudaError_t queue_kernel(cudaStream_t stream, dim3 grid, dim3 block, Threads threads, const void* function,
                         std::span<const void* const> pointers, std::function<void()> thread_body) {
  if (note_call(Call::launch)) return set_last_error(cudaErrorUnknown);
  if (!is_live(stream, "a launch")) return set_last_error(cudaErrorInvalidResourceHandle);
  cudaError_t code = cudaSuccess;
  Device* const device = current_device(code);
  if (device == nullptr) return set_last_error(code);
  if (device != &stream->device) {
    explain("a launch: device %d is current, the stream is of device %d", device->index, stream->device.index);
    return set_last_error(cudaErrorInvalidResourceHandle);
  }
  if (!fits(grid, block)) {
    explain("a launch: no GPU takes a grid of (%u, %u, %u) blocks of (%u, %u, %u) threads", grid.x, grid.y, grid.z,
            block.x, block.y, block.z);
    return set_last_error(cudaErrorInvalidConfiguration);
  }
  load_function(stream, reinterpret_cast<uintptr_t>(function));
  bool fails = device->launches_to_failure.load() > 0 && device->launches_to_failure.fetch_sub(1) == 1;
  for (size_t i = 0; i < pointers.size(); ++i) {
    const std::string name = "a kernel's parameter " + std::to_string(i);
    fails = !may_touch(*device, pointers[i], 0, name.c_str()) || fails;
  }
  return queue_work(stream, !fails,
                    [grid, block, threads, body = std::move(thread_body)] { run_grid(grid, block, threads, body); });
}

}  // namespace vitrine::standins
