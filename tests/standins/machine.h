// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cpu/stream.h"
#include "tests/standins/controls.h"

/// State of the stand-in for the CUDA runtime. Private to the stand-ins.
///
/// ThreadSanitizer must see only the order that the code under test establishes. So a stream's worker takes no lock and
/// publishes nothing to other threads except through events and synchronization.
namespace vitrine::standins {

inline constexpr int kMostDevices = 64;
inline constexpr int kHost = -1;

/// The functions that a device has loaded. Threads do not synchronize here.
class LoadedFunctions {
 public:
  /// False: it was there.
  bool insert(uint64_t function);

 private:
  std::array<std::atomic<uint64_t>, 8192> slots_{};
};

struct Device {
  int index = 0;
  int physical = 0;                     // before CUDA_VISIBLE_DEVICES
  std::atomic<int> error{cudaSuccess};  // a sticky error of CUDA
  std::atomic<int64_t> launches_to_failure{0};
  std::atomic<bool> has_context{false};
  std::atomic<int64_t> simulated_ns{0};        // that its events are late
  std::atomic<int> process{kMostDevices - 1};  // see be_process_of()
  LoadedFunctions loaded;
  // Guarded by State::mutex.
  int64_t used_bytes = 0;
  bool fail_next_malloc = false;
  std::array<bool, kMostDevices> peers{};
};

struct Allocation {
  uintptr_t begin = 0;
  size_t bytes = 0;
  size_t mapped_bytes = 0;
  int device = kHost;  // kHost: pinned
  bool freed = false;  // its addresses stay reserved, so that a late use is detected
};

struct GraphWork;

struct State {
  std::shared_mutex mutex;
  Machine machine;
  std::deque<Device> devices;
  std::map<uintptr_t, Allocation> allocations;
  std::deque<uintptr_t> freed;  // oldest first
  size_t freed_bytes = 0;
  std::unordered_map<cudaStream_t, std::shared_ptr<CUstream_st>> streams;
  std::unordered_set<cudaEvent_t> events;
  std::unordered_set<const void*> cublas_handles, cudnn_handles;
  std::unordered_set<cudaGraph_t> graphs;
  std::unordered_set<cudaGraphExec_t> executables;
  // Queued work may still refer to records of events and to the work of graphs. Counting its references would order it.
  std::vector<std::unique_ptr<CUevent_st>> destroyed_events;
  std::vector<std::shared_ptr<const GraphWork>> destroyed_graphs;
  std::array<std::atomic<bool>, kMostDevices> loading{};  // a thread of the process loads a function
};
State& state();

/// See be_process_of().
bool is_of_this_process(int device);

/// Stores the thread's last error, as every CUDA function does.
cudaError_t set_last_error(cudaError_t code);
cudaError_t take_last_error(bool clear);

/// Kinds of calls that CallCounts counts.
enum class Call : uint8_t {
  launch,
  product,
  convolution,
  collective,
  graph_launch,
  copy,
  fill,
  timed_record,
  record,
  wait,
  create_event,
  query,
  other,
  count
};
/// Called first by the functions of the imitated libraries. All but queries take memory of the thread's current device
/// when it has no context yet, whichever device their arguments belong to, as CUDA does.
void count_call(Call call);
/// The same. Whether fail_call() has this one fail; then the function does nothing else and returns an error.
bool note_call(Call call, const char* name = __builtin_FUNCTION());

/// The current device of this thread.
int& current_index();
/// The device; null, with the reason in `code`, if it does not exist or is in error.
Device* usable_device(int index, cudaError_t& code);
/// Like device_of(), for calls that need a context on the device.
Device* current_device(cudaError_t& code);
/// Takes the memory that CUDA takes when a device is made current or first used.
void make_context(Device& device);

/// The allocation, even a freed one, that contains p; its end counts as inside if `end_counts`. nullopt: ordinary host
/// memory.
std::optional<Allocation> find_allocation(const void* p, bool end_counts = false);

/// Counts a call that captures or launches a graph, or is made while this thread captures. Whether fail_capture_call()
/// has it fail; then this thread's capture has become invalid.
bool fails_in_capture();

/// False, with a message, if the handle is not a stream. `call` is the name of the called function.
bool is_live(cudaStream_t stream, const char* call);
/// Loads what the device has not run before, before it is launched on the stream: see Machine::lazy_loading. Orders
/// nothing for ThreadSanitizer.
void load_function(cudaStream_t stream, uint64_t function);
/// Waits for all work of a device.
void drain(int device);
/// Waits for all work of this process.
void drain_all();

/// Whether work of the device may access [p, p + bytes): its own memory, that of peers with enabled access, pinned
/// memory; null if bytes is 0. Prints what is wrong. With 0 bytes, the end of an allocation counts as inside.
bool may_touch(const Device& device, const void* p, int64_t bytes, const char* what);

/// For each stream of a capture, how many of its nodes come before a point.
using CapturedBefore = std::map<cudaStream_t, size_t>;

/// A piece of a graph: work, a record of an event, or work that each launch issues again.
struct GraphNode {
  std::function<void()> work = {};
  cudaEvent_t event = nullptr;
  std::function<std::function<void()>()> at_launch = {};  // empty work: this launch is refused
  std::shared_ptr<const void> owner = {};  // is released when the graphs with the node have been destroyed
  cudaStream_t stream = nullptr;           // on which it was captured
  CapturedBefore before = {};              // what it comes after
};

/// A capture in progress. A stream that waits for an event recorded in it takes part until its end; all of them must
/// then have been joined to the stream on which it began.
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;  // that began it
  cudaStream_t origin = nullptr;
  bool invalid = false;  // a call that is not allowed during a capture was made
  bool ended = false;
  std::vector<GraphNode> nodes;
  std::vector<cudaStream_t> streams;  // that take part
  CapturedBefore added;               // nodes of each
};

/// What a launch of a graph runs. The nodes of each captured stream are a branch, which runs in order on a thread of
/// its own; the first branch is that of the stream on which the capture began, and runs on the stream of the launch.
/// Nothing but the captured edges orders the branches: a node waits for the marks of those nodes of other branches that
/// it comes after.
struct GraphWork {
  struct Step {
    GraphNode node;  // the last step of the first branch has none
    std::vector<size_t> waits;
    std::optional<size_t> mark;  // reached after the node
  };
  std::vector<Step> steps;                    // in the order of the capture
  std::vector<std::vector<size_t>> branches;  // the steps of each
  size_t marks = 1;                           // the first is reached when the launch begins
};
/// requires  a capture whose streams are joined; `joined` is what comes before the end of its origin. Takes its nodes.
GraphWork graph_work(Capture& capture, const CapturedBefore& joined);

/// Whether this thread captures.
bool is_capturing();

/// Adds a node to the stream's capture.
void add_node(cudaStream_t stream, GraphNode node);
/// Makes the stream's capture, or a stream outside any, continue after an event that was recorded in a capture. Returns
/// CUDA's error.
cudaError_t join_capture(cudaStream_t stream, cudaEvent_t event);
/// Whether a capture forbids this thread a call that is unsafe meanwhile, such as an allocation; then that capture
/// becomes invalid.
bool capture_forbids(const char* call);
/// The error of a call that waits for or queries the stream, if it is being captured; then the capture becomes invalid.
cudaError_t forbid_on_captured(cudaStream_t stream, const char* call);
/// cudaErrorStreamCaptureInvalidated if the stream is in a capture that has become invalid.
cudaError_t capture_error(cudaStream_t stream);

/// The libraries' parts of live_objects() and of the check in configure().
int64_t live_descriptors();
int64_t live_cudnn_descriptors();
int64_t live_communicators();
void clear_nccl_faults();
void clear_product_algorithms();
void clear_cudnn();

/// Prints the mistake of the code under test if CUDA's error code alone would not help.
[[gnu::format(printf, 1, 2)]] void explain(const char* format, ...);

}  // namespace vitrine::standins

/// A stream: CpuStream's worker behind CUDA's interface. Issuing is thread-safe, as in CUDA.
struct CUstream_st {
  CUstream_st(vitrine::standins::Device& device, unsigned flags, int priority);
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  /// Queues work that is skipped if the device is in error.
  template <class F>
  void enqueue(F f) {
    push([&on = device, f = std::move(f)]() mutable {
      if (on.error.load(std::memory_order_relaxed) == cudaSuccess) f();
    });
  }
  /// Queues work that always runs: records of events.
  template <class F>
  void enqueue_always(F f) {
    push(std::move(f));
  }
  bool is_done() const;
  void synchronize();
  /// Waits as synchronize() does, without ordering anything.
  void wait_unordered();

  vitrine::standins::Device& device;
  const unsigned flags;
  const int priority;
  std::shared_ptr<vitrine::standins::Capture> capture;  // null: work runs. Used by the threads that issue to the stream
  vitrine::standins::CapturedBefore captured_before;    // what the next node of the capture comes after
  std::mutex launching;                                 // of graphs: their branches begin in the same order
  /// The stream of a branch of the graphs that are launched on this one, from 1. requires `launching`
  CUstream_st& branch(size_t number);

 private:
  template <class F>
  void push(F f) {
    if (capture != nullptr) {
      if constexpr (std::is_copy_constructible_v<F>) {
        vitrine::standins::add_node(this, {.work = std::function<void()>(std::move(f))});
      } else {
        vitrine::standins::explain("a captured stream: the stand-in cannot repeat this work; the capture is invalid");
        capture->invalid = true;
      }
      return;
    }
    const std::lock_guard lock(issuing_);
    const uint32_t number = issued_.fetch_add(1, std::memory_order_relaxed) + 1;
    worker_.enqueue([this, number, f = std::move(f)]() mutable {
      f();
      complete(number);
    });
  }
  void complete(uint32_t number);

  std::mutex issuing_;
  std::atomic<uint32_t> issued_{0}, completed_{0}, sleepers_{0};
  std::vector<std::unique_ptr<CUstream_st>> branches_;
  vitrine::CpuStream worker_;  // ends first, because its work waits for that of the branches
};

/// An event: the latest of its records, each of which is reached once.
struct CUevent_st {
  struct Record {
    std::atomic<uint32_t> reached{0};
    std::atomic<uint32_t> sleepers{0};
    std::atomic<uint32_t> users{0};  // queued work that refers to it
    std::atomic<int64_t> time_ns{0};

    void reach();
    void wait();
    /// What a stream does at the event: takes the time, reaches the record and ends begin_record()'s use.
    void finish(const vitrine::standins::Device& device);
  };
  CUevent_st(vitrine::standins::Device& owner, unsigned event_flags) : device(owner), flags(event_flags) {}
  /// A record that no queued work refers to.
  Record& fresh_record();
  /// Makes a fresh record the latest one, in use until its finish().
  Record& begin_record();

  vitrine::standins::Device& device;
  const unsigned flags;
  std::deque<Record> records;
  Record* latest = nullptr;  // null: never recorded, which counts as reached
  std::shared_ptr<vitrine::standins::Capture>
      captured;  // the capture in which it was recorded last; null: recorded outside
  vitrine::standins::CapturedBefore captured_before;  // what lies before it there
};

struct CUgraph_st {
  vitrine::standins::Device& device;
  std::shared_ptr<const vitrine::standins::GraphWork> work;
  std::vector<std::shared_ptr<const void>> owners;  // of its nodes
};
struct CUgraphExec_st {
  vitrine::standins::Device& device;
  std::shared_ptr<const vitrine::standins::GraphWork> work;
  std::vector<std::shared_ptr<const void>> owners;
  std::vector<std::unique_ptr<CUevent_st>> marks;
};

namespace vitrine::standins {

/// Queues work of the stream's device. Access to forbidden memory fails as on a GPU: later, and permanently.
template <class F>
cudaError_t queue_work(cudaStream_t stream, bool touches_its_own, F f) {
  Device& device = stream->device;
  if (const int code = device.error.load(std::memory_order_relaxed); code != cudaSuccess)
    return set_last_error(static_cast<cudaError_t>(code));
  if (const cudaError_t code = capture_error(stream); code != cudaSuccess) return set_last_error(code);
  if (touches_its_own) {
    stream->enqueue(std::move(f));
  } else {
    stream->enqueue([&device] { device.error.store(cudaErrorIllegalAddress, std::memory_order_relaxed); });
  }
  return cudaSuccess;
}

}  // namespace vitrine::standins
