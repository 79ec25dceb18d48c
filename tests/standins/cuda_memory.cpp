// SPDX-License-Identifier: Apache-2.0
// Stand-in for the CUDA runtime: memory and copies. Device memory is host memory; each allocation is mapped apart, and
// its addresses stay reserved.
#include <algorithm>
#include <cstring>
#include <memory>

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

#include "tests/standins/machine.h"

using vitrine::standins::Allocation;
using vitrine::standins::Call;
using vitrine::standins::current_device;
using vitrine::standins::Device;
using vitrine::standins::explain;
using vitrine::standins::find_allocation;
using vitrine::standins::kHost;
using vitrine::standins::note_call;
using vitrine::standins::set_last_error;
using vitrine::standins::State;
using vitrine::standins::state;

namespace {

namespace standins = vitrine::standins;

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;
constexpr size_t kMostFreed = size_t{128} << 30;  // addresses kept from reuse
constexpr size_t kMostFilled = size_t{16} << 20;  // size filled with NaN; filling the rest would only take time

// At least one inaccessible page follows each allocation.
void* map(size_t bytes, int device) {
  Allocation a{.bytes = bytes, .device = device};
  const size_t pages = (bytes + kPage - 1) / kPage * kPage;
  a.mapped_bytes = pages + kPage;
  void* const p = mmap(nullptr, a.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
  std::memset(p, 0xFF, std::min(bytes, kMostFilled));
  const size_t used = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  ASAN_POISON_MEMORY_REGION(static_cast<std::byte*>(p) + used, a.mapped_bytes - used);
  a.begin = reinterpret_cast<uintptr_t>(p);
  state().allocations[a.begin] = a;
  return p;
}

void forget_oldest() {
  State& s = state();
  while (s.freed_bytes > kMostFreed && s.freed.size() > 1) {
    const auto at = s.allocations.find(s.freed.front());
    s.freed.pop_front();
    s.freed_bytes -= at->second.mapped_bytes;
    munmap(reinterpret_cast<void*>(at->first), at->second.mapped_bytes);
    s.allocations.erase(at);
  }
}

// requires the lock. False: p is not the start of a live allocation of that kind.
bool unmap(void* p, bool pinned) {
  const auto at = state().allocations.find(reinterpret_cast<uintptr_t>(p));
  if (at == state().allocations.end() || at->second.freed || (at->second.device == kHost) != pinned) return false;
  Allocation& a = at->second;
  a.freed = true;
  ASAN_UNPOISON_MEMORY_REGION(p, a.mapped_bytes);
  mmap(p, a.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  state().freed.push_back(a.begin);
  state().freed_bytes += a.mapped_bytes;
  forget_oldest();
  if (!pinned) state().devices[static_cast<size_t>(a.device)].used_bytes -= static_cast<int64_t>(a.bytes);
  return true;
}

enum class Place { pageable, pinned, device, wrong };

// Location of [p, p + bytes); prints what is wrong with it.
Place place_of(const char* call, const char* argument, const void* p, size_t bytes, int* device = nullptr) {
  const auto a = find_allocation(p);
  if (!a) return Place::pageable;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  if (a->freed || begin + bytes > a->begin + a->bytes) {
    explain("%s: %s [%p, +%zu) is %s of %zu bytes at %p", call, argument, p, bytes,
            a->freed ? "in a freed allocation" : "outside the allocation", a->bytes, reinterpret_cast<void*>(a->begin));
    return Place::wrong;
  }
  if (device != nullptr) *device = a->device;
  return a->device == kHost ? Place::pinned : Place::device;
}

bool is_direction(cudaMemcpyKind kind, Place from, Place to) {
  const bool from_device = from == Place::device, to_device = to == Place::device;
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
  }
  return false;
}

// As in CUDA: data from pageable memory is staged before the call returns, and a copy to pageable memory is done when
// it returns.
cudaError_t copy(const char* call, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!standins::is_live(stream, call)) return set_last_error(cudaErrorInvalidResourceHandle);
  cudaError_t code = cudaSuccess;
  if (standins::usable_device(stream->device.index, code) == nullptr) return set_last_error(code);
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return set_last_error(cudaErrorInvalidValue);
  const Place source = place_of(call, "the source", from, bytes), target = place_of(call, "the destination", to, bytes);
  if (source == Place::wrong || target == Place::wrong) return set_last_error(cudaErrorInvalidValue);
  if (!is_direction(kind, source, target)) {
    explain("%s: the direction does not fit the pointers", call);
    return set_last_error(cudaErrorInvalidMemcpyDirection);
  }
  if (stream->capture != nullptr && (source == Place::pageable || target == Place::pageable)) {
    explain(
        "%s: a graph would access pageable memory whenever it is launched; use pinned memory. The capture is invalid",
        call);
    stream->capture->invalid = true;
    return set_last_error(cudaErrorStreamCaptureUnsupported);
  }
  if (cudaError_t invalid = standins::capture_error(stream); invalid != cudaSuccess) return set_last_error(invalid);
  if (source == Place::pageable && target != Place::pageable) {
    std::shared_ptr<std::byte[]> staged(new std::byte[bytes]);
    std::memcpy(staged.get(), from, bytes);
    stream->enqueue([to, staged = std::move(staged), bytes] { std::memcpy(to, staged.get(), bytes); });
  } else {
    stream->enqueue([to, from, bytes] { std::memcpy(to, from, bytes); });
  }
  if (target == Place::pageable) return cudaStreamSynchronize(stream);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (standins::capture_forbids("cudaMalloc")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  cudaError_t code = cudaSuccess;
  Device* const device = current_device(code);
  if (device == nullptr) return set_last_error(code);
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  const std::unique_lock lock(state().mutex);
  const bool fails = std::exchange(device->fail_next_malloc, false);
  const int64_t free_bytes = state().machine.capacity_bytes - device->used_bytes;
  if (fails || static_cast<int64_t>(bytes) > free_bytes) return set_last_error(cudaErrorMemoryAllocation);
  *p = map(bytes, device->index);
  if (*p == nullptr) return set_last_error(cudaErrorMemoryAllocation);
  device->used_bytes += static_cast<int64_t>(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (standins::capture_forbids("cudaFree")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  if (p == nullptr) return cudaSuccess;
  const auto a = find_allocation(p);
  if (a && a->device != kHost && !a->freed) standins::drain(a->device);
  const std::unique_lock lock(state().mutex);
  if (unmap(p, false)) return cudaSuccess;
  explain("cudaFree: %p is no live allocation", p);
  return set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (standins::capture_forbids("cudaHostAlloc")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  cudaError_t code = cudaSuccess;
  Device* const device = current_device(code);
  if (device == nullptr) return set_last_error(code);
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  const std::unique_lock lock(state().mutex);
  *p = map(bytes, kHost);
  return *p == nullptr ? set_last_error(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaMallocHost(void** p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void* p) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (standins::capture_forbids("cudaFreeHost")) return set_last_error(cudaErrorStreamCaptureUnsupported);
  if (p == nullptr) return cudaSuccess;
  standins::drain_all();
  const std::unique_lock lock(state().mutex);
  if (unmap(p, true)) return cudaSuccess;
  explain("cudaFreeHost: %p is no live pinned allocation", p);
  return set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* p, unsigned) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  const auto a = find_allocation(p);
  if (!a || a->device != kHost || a->freed) return set_last_error(cudaErrorInvalidValue);
  *device_pointer = p;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  Device* const device = current_device(code);
  if (device == nullptr) return set_last_error(code);
  const std::unique_lock lock(state().mutex);
  *total_bytes = static_cast<size_t>(state().machine.capacity_bytes);
  *free_bytes = static_cast<size_t>(std::max<int64_t>(0, state().machine.capacity_bytes - device->used_bytes));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  *attributes = cudaPointerAttributes{};
  const auto a = find_allocation(p);
  attributes->device = -1;
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->hostPointer = const_cast<void*>(p);
  if (!a) return cudaSuccess;
  if (a->freed) return set_last_error(cudaErrorInvalidValue);
  attributes->type = a->device == kHost ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = std::max(a->device, 0);
  attributes->devicePointer = const_cast<void*>(p);
  if (a->device != kHost) attributes->hostPointer = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (note_call(Call::copy)) return set_last_error(cudaErrorUnknown);
  return copy("cudaMemcpyAsync", to, from, bytes, kind, stream);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  if (note_call(Call::copy)) return set_last_error(cudaErrorUnknown);
  for (const auto& [p, index, name] :
       {std::tuple{static_cast<const void*>(to), to_device, "destination"}, std::tuple{from, from_device, "source"}}) {
    const auto a = find_allocation(p);
    if (bytes == 0 || (a && a->device == index)) continue;
    explain("cudaMemcpyPeerAsync: the %s %p is not memory of device %d", name, p, index);
    return set_last_error(cudaErrorInvalidValue);
  }
  const cudaError_t queued = copy("cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  if (queued != cudaSuccess || bytes == 0 || to_device == from_device || !state().machine.garbles_peer_copies)
    return queued;
  const std::shared_lock lock(state().mutex);
  const int other = stream->device.index == to_device ? from_device : to_device;
  if (stream->device.peers[static_cast<size_t>(other)])
    stream->enqueue([last = static_cast<std::byte*>(to) + bytes - 1] { *last ^= std::byte{1}; });
  return queued;
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  if (note_call(Call::fill)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaMemsetAsync")) return set_last_error(cudaErrorInvalidResourceHandle);
  cudaError_t code = cudaSuccess;
  if (standins::usable_device(stream->device.index, code) == nullptr) return set_last_error(code);
  if (bytes == 0) return cudaSuccess;
  const Place place = place_of("cudaMemsetAsync", "the memory", p, bytes);
  if (place == Place::pageable || place == Place::wrong) return set_last_error(cudaErrorInvalidValue);
  stream->enqueue([p, value, bytes] { std::memset(p, value, bytes); });
  return cudaSuccess;
}

// Calls without a stream wait for the device's work and are done when they return.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t drained = cudaDeviceSynchronize();
  if (drained != cudaSuccess) return drained;
  const Place source = place_of("cudaMemcpy", "the source", from, bytes),
              target = place_of("cudaMemcpy", "the destination", to, bytes);
  if (source == Place::wrong || target == Place::wrong) return set_last_error(cudaErrorInvalidValue);
  if (!is_direction(kind, source, target)) return set_last_error(cudaErrorInvalidMemcpyDirection);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  const cudaError_t drained = cudaDeviceSynchronize();
  if (drained != cudaSuccess) return drained;
  const Place place = place_of("cudaMemset", "the memory", p, bytes);
  if (place == Place::pageable || place == Place::wrong) return set_last_error(cudaErrorInvalidValue);
  std::memset(p, value, bytes);
  return cudaSuccess;
}
