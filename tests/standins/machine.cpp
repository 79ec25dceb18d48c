// SPDX-License-Identifier: Apache-2.0
#include "tests/standins/machine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

#include <sys/mman.h>

namespace vitrine::standins {
namespace {

thread_local int thread_device = 0;
thread_local std::vector<int> process_devices;  // empty: all
thread_local cudaError_t last_error = cudaSuccess;

std::array<std::atomic<int64_t>, static_cast<size_t>(Call::count)> call_counts;
thread_local struct {
  int64_t left = 0;  // until the one that fails; 0: none does
  const char* name = "";
} failing_call;

int64_t take_count(Call call) { return call_counts[static_cast<size_t>(call)].exchange(0, std::memory_order_relaxed); }

// CUDA takes the numbers up to the first that names no device.
std::vector<int> visible_devices(int count) {
  std::vector<int> devices;
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    char* end = nullptr;
    const long index = std::strtol(item.c_str(), &end, 10);
    if (item.empty() || *end != '\0' || index < 0 || index >= count) break;
    devices.push_back(static_cast<int>(index));
  }
  return devices;
}

void make_devices(State& s, const Machine& machine) {
  s.machine = machine;
  s.devices.clear();
  if (machine.driver != Driver::present) return;
  for (int physical : visible_devices(machine.device_count)) {
    Device& device = s.devices.emplace_back();
    device.index = static_cast<int>(s.devices.size()) - 1;
    device.physical = physical;
  }
}

Machine first_machine() {
  Machine machine;
  if (const char* const text = std::getenv("VITRINE_STANDIN_DEVICES"); text != nullptr) {
    machine.device_count = std::atoi(text);
    if (machine.device_count == 0)
      machine.driver = std::string(text) == "no-driver" ? Driver::missing : Driver::without_gpu;
  }
  const char* const value = std::getenv("VITRINE_STANDIN_FAULT");
  const std::string fault = value == nullptr ? "" : value;
  if (fault == "taken") machine.taken = 0;
  machine.garbles_peer_copies = fault == "garbled";
  machine.cudnn_aborts = fault == "cudnn";
  machine.cudnn_of_cuda_77 = fault == "cuda77";
  return machine;
}

std::string leftovers(const State& s) {
  std::string text;
  if (!s.streams.empty()) text += " " + std::to_string(s.streams.size()) + " streams";
  if (!s.cublas_handles.empty()) text += " " + std::to_string(s.cublas_handles.size()) + " cuBLASLt handles";
  if (!s.cudnn_handles.empty()) text += " " + std::to_string(s.cudnn_handles.size()) + " cuDNN handles";
  if (!s.graphs.empty()) text += " " + std::to_string(s.graphs.size()) + " graphs";
  if (!s.executables.empty()) text += " " + std::to_string(s.executables.size()) + " executable graphs";
  if (!s.events.empty()) text += " " + std::to_string(s.events.size()) + " events";
  for (const auto& [begin, a] : s.allocations) {
    if (a.freed) continue;
    text += " " + std::to_string(a.bytes) + " bytes of " +
            (a.device == kHost ? "pinned memory" : "cuda:" + std::to_string(a.device));
  }
  return text;
}

}  // namespace

State& state() {
  static State* const s = [] {
    auto* made = new State;  // lives until the process ends: threads may still refer to it
    make_devices(*made, first_machine());
    return made;
  }();
  return *s;
}

cudaError_t set_last_error(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

cudaError_t take_last_error(bool clear) {
  const cudaError_t code = last_error;
  if (clear) last_error = cudaSuccess;
  return code;
}

void fail_call(int64_t n) { failing_call = {n, ""}; }
const char* failed_call() { return failing_call.name; }

bool note_call(Call call, const char* name) {
  count_call(call);
  if (failing_call.left == 0 || --failing_call.left != 0) return false;
  failing_call.name = name;
  return true;
}

void count_call(Call call) {
  call_counts[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed);
  cudaError_t ignored = cudaSuccess;
  if (call != Call::query) current_device(ignored);
  if (call != Call::query && is_capturing()) fails_in_capture();
}

CallCounts take_call_counts() {
  CallCounts counts;
  for (const auto& [call, count] : {std::pair{Call::launch, &counts.launches},
                                    {Call::product, &counts.products},
                                    {Call::convolution, &counts.convolutions},
                                    {Call::collective, &counts.collectives},
                                    {Call::graph_launch, &counts.graph_launches},
                                    {Call::copy, &counts.copies},
                                    {Call::fill, &counts.fills},
                                    {Call::timed_record, &counts.timed_records},
                                    {Call::record, &counts.records},
                                    {Call::wait, &counts.waits},
                                    {Call::create_event, &counts.created_events},
                                    {Call::query, &counts.queries}}) {
    *count = take_count(call);
    counts.all += *count;
  }
  counts.all += take_count(Call::other);
  return counts;
}

int& current_index() { return thread_device; }

Device* usable_device(int index, cudaError_t& code) {
  State& s = state();
  if (s.machine.driver != Driver::present || s.devices.empty()) {
    code = s.machine.driver == Driver::missing ? cudaErrorInsufficientDriver : cudaErrorNoDevice;
    return nullptr;
  }
  if (index < 0 || index >= static_cast<int>(s.devices.size())) {
    code = cudaErrorInvalidDevice;
    return nullptr;
  }
  Device& device = s.devices[static_cast<size_t>(index)];
  code = static_cast<cudaError_t>(device.error.load(std::memory_order_relaxed));
  if (code != cudaSuccess) return nullptr;
  return &device;
}

bool is_of_this_process(int device) {
  return process_devices.empty() || std::ranges::find(process_devices, device) != process_devices.end();
}

void be_process_of(std::vector<int> devices) {
  for (const int device : devices) state().devices.at(static_cast<size_t>(device)).process = devices.front();
  process_devices = std::move(devices);
}

Device* current_device(cudaError_t& code) {
  Device* const device = usable_device(thread_device, code);
  if (device == nullptr) return nullptr;
  if (device->physical == state().machine.taken) {
    code = cudaErrorDevicesUnavailable;
    return nullptr;
  }
  make_context(*device);
  return device;
}

void make_context(Device& device) {
  if (device.has_context.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(state().mutex);
  if (!device.has_context.exchange(true, std::memory_order_relaxed)) device.used_bytes += kContextBytes;
}

bool LoadedFunctions::insert(uint64_t function) {
  for (size_t at = function % slots_.size();; at = (at + 1) % slots_.size()) {
    uint64_t found = slots_[at].load(std::memory_order_relaxed);
    if (found == 0 && slots_[at].compare_exchange_strong(found, function, std::memory_order_relaxed)) return true;
    if (found == function) return false;
  }
}

std::optional<Allocation> find_allocation(const void* p, bool end_counts) {
  State& s = state();
  const auto address = reinterpret_cast<uintptr_t>(p);
  const std::shared_lock lock(s.mutex);
  auto at = s.allocations.upper_bound(address);
  if (at == s.allocations.begin()) return std::nullopt;
  const Allocation& a = (--at)->second;
  // Freed memory and the pages after an allocation are not reused.
  const uintptr_t end = a.begin + a.mapped_bytes;
  if (address < end || (end_counts && address == end)) return a;
  return std::nullopt;
}

bool may_touch(const Device& device, const void* p, int64_t bytes, const char* what) {
  if (p == nullptr) return bytes == 0;
  const auto a = find_allocation(p, bytes == 0);
  const auto end = reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(bytes);
  const char* wrong = nullptr;
  if (!a) {
    wrong = "ordinary host memory";
  } else if (a->freed) {
    wrong = "freed memory";
  } else if (end > a->begin + a->bytes) {
    wrong = "beyond its allocation";
  } else if (a->device != kHost && a->device != device.index) {
    const std::shared_lock lock(state().mutex);
    if (!device.peers[static_cast<size_t>(a->device)]) wrong = "another GPU's memory without peer access";
  }
  if (wrong == nullptr) return true;
  explain("%s on device %d, [%p, +%ld), is %s", what, device.index, p, bytes, wrong);
  return false;
}

void explain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("standins: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

void configure(const Machine& machine) {
  State& s = state();
  const int64_t communicators = live_communicators();
  {
    const std::unique_lock lock(s.mutex);
    std::string left = leftovers(s);
    if (live_descriptors() > 0) left += " " + std::to_string(live_descriptors()) + " descriptors of cuBLASLt";
    if (live_cudnn_descriptors() > 0) left += " " + std::to_string(live_cudnn_descriptors()) + " descriptors of cuDNN";
    if (communicators > 0) left += " " + std::to_string(communicators) + " NCCL communicators";
    if (!left.empty()) throw std::logic_error("standins::configure: still alive:" + left);
    for (const auto& [begin, a] : s.allocations) munmap(reinterpret_cast<void*>(begin), a.mapped_bytes);
    s.allocations.clear();
    s.freed.clear();
    s.freed_bytes = 0;
    make_devices(s, machine);
  }
  clear_nccl_faults();  // NCCL's calls lock their library first
  clear_product_algorithms();
  clear_cudnn();
}

void reset() { configure(Machine{}); }

int64_t live_objects() {
  State& s = state();
  const int64_t communicators = live_communicators();
  const std::shared_lock lock(s.mutex);
  int64_t count = communicators + live_descriptors() + live_cudnn_descriptors() +
                  static_cast<int64_t>(s.streams.size() + s.events.size() + s.cublas_handles.size() +
                                       s.cudnn_handles.size() + s.graphs.size() + s.executables.size());
  for (const auto& [begin, a] : s.allocations) count += a.freed ? 0 : 1;
  return count;
}

int64_t allocated_bytes(int device) {
  State& s = state();
  const std::shared_lock lock(s.mutex);
  int64_t bytes = 0;
  for (const auto& [begin, a] : s.allocations)
    bytes += !a.freed && a.device == device ? static_cast<int64_t>(a.bytes) : 0;
  return bytes;
}

bool has_context(int device) { return state().devices.at(static_cast<size_t>(device)).has_context.load(); }

void fail_next_malloc(int device) {
  State& s = state();
  const std::unique_lock lock(s.mutex);
  s.devices.at(static_cast<size_t>(device)).fail_next_malloc = true;
}

void fail_launch(int device, int64_t n) {
  state().devices.at(static_cast<size_t>(device)).launches_to_failure.store(n);
}

}  // namespace vitrine::standins
