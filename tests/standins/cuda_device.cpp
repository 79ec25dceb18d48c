// SPDX-License-Identifier: Apache-2.0
// Stand-in for the CUDA runtime: devices, errors, versions.
#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "tests/standins/machine.h"

using vitrine::standins::Call;
using vitrine::standins::count_call;
using vitrine::standins::Device;
using vitrine::standins::explain;
using vitrine::standins::note_call;
using vitrine::standins::set_last_error;

namespace {

namespace standins = vitrine::standins;

constexpr int kMultiprocessors = 4;

// The device, even if it is in error: its properties are known.
Device* known_device(int index, cudaError_t& code) {
  Device* const device = standins::usable_device(index, code);
  if (device != nullptr || code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice ||
      code == cudaErrorInvalidDevice)
    return device;
  code = cudaSuccess;
  return &standins::state().devices[static_cast<size_t>(index)];
}

// CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned*, int*).
int get_primary_context_state(int index, unsigned* flags, int* active) {
  cudaError_t code = cudaSuccess;
  const Device* const device = known_device(index, code);
  if (device == nullptr) return code;
  *flags = 0;
  *active = device->has_context.load(std::memory_order_relaxed) ? 1 : 0;
  return cudaSuccess;
}

struct ErrorText {
  cudaError_t code;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorTooManyPeers, "cudaErrorTooManyPeers", "peer mapping resources exhausted"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};
constexpr ErrorText kUnknown = {cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};

const ErrorText& text_of(cudaError_t code) {
  const auto* const found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [&](const ErrorText& e) { return e.code == code; });
  return found == std::end(kErrors) ? kUnknown : *found;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t code) { return text_of(code).name; }
const char* cudaGetErrorString(cudaError_t code) { return text_of(code).text; }

cudaError_t cudaGetLastError() {
  count_call(Call::query);
  return standins::take_last_error(true);
}
cudaError_t cudaPeekAtLastError() {
  count_call(Call::query);
  return standins::take_last_error(false);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = standins::state().machine.driver == standins::Driver::missing ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (note_call(Call::query)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  *count = known_device(0, code) == nullptr ? 0 : static_cast<int>(standins::state().devices.size());
  return set_last_error(code);
}

cudaError_t cudaGetDevice(int* index) {
  if (note_call(Call::query)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  if (known_device(0, code) == nullptr) return set_last_error(code);
  *index = standins::current_index();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  if (note_call(Call::query)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  Device* const device = known_device(index, code);
  if (device == nullptr) return set_last_error(code);
  if (device->physical == standins::state().machine.taken) return set_last_error(cudaErrorDevicesUnavailable);
  standins::make_context(*device);  // since CUDA 12
  standins::current_index() = index;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::string_view(symbol) == "cuDevicePrimaryCtxGetState";
  *function = known ? reinterpret_cast<void*>(&get_primary_context_state) : nullptr;
  if (found != nullptr) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  if (note_call(Call::query)) return set_last_error(cudaErrorUnknown);
  cudaDeviceProp p;
  if (const cudaError_t code = cudaGetDeviceProperties(&p, index); code != cudaSuccess) return code;
  const std::pair<cudaDeviceAttr, int> known[] = {
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(p.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(p.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrWarpSize, p.warpSize},
      {cudaDevAttrL2CacheSize, p.l2CacheSize},
      {cudaDevAttrPciBusId, p.pciBusID},
      {cudaDevAttrUnifiedAddressing, p.unifiedAddressing},
      {cudaDevAttrCanMapHostMemory, p.canMapHostMemory},
      {cudaDevAttrConcurrentKernels, p.concurrentKernels}};
  for (const auto& [name, number] : known) {
    if (name != attribute) continue;
    *value = number;
    return cudaSuccess;
  }
  explain("cudaDeviceGetAttribute: the stand-in does not support attribute %d", static_cast<int>(attribute));
  return set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int index) {
  if (note_call(Call::query)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  const Device* const device = known_device(index, code);
  if (device == nullptr) return set_last_error(code);
  *p = cudaDeviceProp{};
  std::snprintf(p->name, sizeof p->name, "%s",
                device->physical == standins::state().machine.other_kind ? "Other imitated GPU" : "Imitated GPU");
  p->uuid.bytes[15] = static_cast<char>(device->physical);
  p->totalGlobalMem = static_cast<size_t>(standins::state().machine.capacity_bytes);
  p->sharedMemPerBlock = p->sharedMemPerBlockOptin = size_t{48} << 10;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = INT32_MAX;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = standins::state().machine.compute_major;
  p->minor = standins::state().machine.compute_minor;
  p->multiProcessorCount = kMultiprocessors;
  p->maxThreadsPerMultiProcessor = 2048;
  p->canMapHostMemory = p->unifiedAddressing = p->concurrentKernels = p->streamPrioritiesSupported = 1;
  p->pciBusID = device->physical + 1;
  p->memoryBusWidth = 64;
  p->l2CacheSize = 1 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  cudaError_t code = cudaSuccess;
  const Device* const device = known_device(index, code);
  if (device == nullptr) return set_last_error(code);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", device->physical + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int index, int peer) {
  if (note_call(Call::query)) return set_last_error(cudaErrorUnknown);
  cudaError_t code = cudaSuccess;
  const Device* const a = known_device(index, code);
  const Device* const b = code == cudaSuccess ? known_device(peer, code) : nullptr;
  if (a == nullptr || b == nullptr) return set_last_error(code);
  *can = a->physical != b->physical && standins::state().machine.peer_access ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  cudaError_t code = cudaSuccess;
  Device* const device = standins::current_device(code);
  if (device == nullptr) return set_last_error(code);
  int can = 0;
  code = cudaDeviceCanAccessPeer(&can, device->index, peer);
  if (code != cudaSuccess) return code;
  if (flags != 0) return set_last_error(cudaErrorInvalidValue);
  if (peer == device->index) return set_last_error(cudaErrorInvalidDevice);
  if (can == 0) return set_last_error(cudaErrorPeerAccessUnsupported);
  const std::unique_lock lock(standins::state().mutex);
  bool& enabled = device->peers[static_cast<size_t>(peer)];
  if (enabled) return set_last_error(cudaErrorPeerAccessAlreadyEnabled);
  if (std::ranges::count(device->peers, true) >= standins::state().machine.most_peers)
    return set_last_error(cudaErrorTooManyPeers);
  enabled = true;
  return cudaSuccess;
}
