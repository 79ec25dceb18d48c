// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/device.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "runtime/cuda/check.h"
#include "runtime/cuda/outside_memory.h"
#include "runtime/cuda/stream.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/gpu_info.h"
#include "runtime/memory/available.h"
#include "runtime/memory/slab.h"
#include "runtime/settings.h"
#include "runtime/text.h"
#include "runtime/units.h"

namespace vitrine {

/// Slab of a GPU: one cudaMalloc of the planned size. Growing frees it and takes a larger one, so the pool must be
/// empty.
class CudaSlab final : public Slab {
 public:
  explicit CudaSlab(int device) : device_(device) {}
  ~CudaSlab() override;
  CudaSlab(const CudaSlab&) = delete;
  CudaSlab& operator=(const CudaSlab&) = delete;

  void* base() const override { return base_; }
  int64_t size_bytes() const override { return size_; }
  void grow(int64_t bytes) override;
  bool grows_again() const override { return false; }

 private:
  int device_;
  void* base_ = nullptr;
  int64_t size_ = 0;
};

CudaSlab::~CudaSlab() {
  if (base_ == nullptr) return;
  cuda::avoid_unused_gpu(device_);
  if (cudaFree(base_) != cudaSuccess) cudaGetLastError();
}

void CudaSlab::grow(int64_t bytes) {
  if (bytes <= size_) return;
  const cuda::DeviceScope scope(device_);
  // An earlier engine may have taken less; its queued work is done when cudaFree returns.
  VITRINE_CUDA_CHECK(cudaFree(base_));
  base_ = nullptr;
  size_ = 0;
  const cudaError_t code = cudaMalloc(&base_, static_cast<size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    VITRINE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    const MemoryShortage shortage{.device = fmt::format("cuda:{}", device_),
                                  .needed_bytes = bytes,
                                  .capacity_bytes = static_cast<int64_t>(total_bytes),
                                  .free_bytes = static_cast<int64_t>(free_bytes)};
    throw OutOfMemory(
        fmt::format("{}: the pool needs {}, but the GPU has {} free of {}", shortage.device, format_bytes(bytes),
                    format_bytes(shortage.free_bytes), format_bytes(shortage.capacity_bytes)),
        shortage);
  }
  VITRINE_CUDA_CHECK(code);
  size_ = bytes;
}

}  // namespace vitrine

namespace vitrine::cuda {
namespace {

struct Memory {
  int64_t free_bytes, total_bytes;
};

Memory memory_of(int gpu) {
  const DeviceScope scope(gpu);
  size_t free_bytes = 0, total_bytes = 0;
  VITRINE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

cudaStream_t given_stream(const DeviceGroupOptions& options, size_t i) {
  if (options.cuda_compute_streams.empty()) return nullptr;
  auto* const stream = static_cast<cudaStream_t>(options.cuda_compute_streams[i]);
  if (stream == nullptr) {
    throw ConfigError(
        fmt::format("{}: its compute stream is the null stream, which synchronizes with all others; pass one made by "
                    "cudaStreamCreateWithFlags(cudaStreamNonBlocking)",
                    options.devices[i].str()));
  }
  int gpu = 0;
  avoid_unused_gpu(options.devices[i].index);
  VITRINE_CUDA_CHECK(cudaStreamGetDevice(stream, &gpu));
  if (gpu != options.devices[i].index) {
    throw DeviceError(fmt::format("{}: its compute stream was created on cuda:{}; create it on the device that uses it",
                                  options.devices[i].str(), gpu));
  }
  return stream;
}

/// What NCCL's parameters add to its buffers, of which each channel has one. The reserve has room for those of 4 MiB.
int64_t enlarged_nccl_buffers() {
  constexpr int64_t kUsualBytes = int64_t{4} << 20, kMostBytes = int64_t{1} << 40;
  const auto number = [](const char* name, int64_t usual) {
    const char* const text = std::getenv(name);
    return text == nullptr ? usual : parse_number<int64_t>(text).value_or(usual);
  };
  const int64_t bytes = std::clamp(number("NCCL_BUFFSIZE", kUsualBytes), kUsualBytes, kMostBytes);
  return (bytes - kUsualBytes) * std::clamp<int64_t>(number("NCCL_MAX_NCHANNELS", 32), 1, 64);
}

}  // namespace

bool enable_peer_access(int from, int to) {
  int reaches = 0;
  VITRINE_CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, from, to));
  if (reaches == 0 || !why_off(GpuFeature::peer_access).empty()) return false;
  const DeviceScope scope(from);
  const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
  // A GPU has a limited number of peers: 8 on some systems.
  if (code != cudaErrorPeerAccessAlreadyEnabled && code != cudaErrorTooManyPeers) VITRINE_CUDA_CHECK(code);
  cudaGetLastError();
  return code != cudaErrorTooManyPeers;
}

void open_gpus(const DeviceGroupOptions& options) {
  const int count = cuda_device_count();
  if (count == 0) throw DeviceError(fmt::format("{}: {}", options.devices[0].str(), query_gpus(false).problem));
  std::set<int> gpus;
  for (const DeviceId& id : options.devices) {
    if (id.index >= count) {
      const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
      throw DeviceError(
          fmt::format("{}: this process sees {} {}, numbered from 0{}; name one of them", id.str(), count,
                      count == 1 ? "GPU" : "GPUs",
                      visible == nullptr ? std::string() : fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", visible)));
    }
    gpus.insert(id.index);
  }
  for (const auto& [handles, what] : {std::pair{&options.cuda_compute_streams, "CUDA compute streams"},
                                      {&options.nccl_communicators, "NCCL communicators"}}) {
    if (!handles->empty() && handles->size() != options.devices.size()) {
      throw ConfigError(
          fmt::format("{} {} for {} devices; pass one for each device", handles->size(), what, options.devices.size()));
    }
  }
  for (const int from : gpus) {
    for (const int to : gpus) {
      if (from != to) enable_peer_access(from, to);
    }
  }
}

int64_t default_capacity(const DeviceGroupOptions& options, size_t i) {
  const auto sharing = std::count(options.devices.begin(), options.devices.end(), options.devices[i]);
  const bool has_peers = options.process_group != nullptr || std::ssize(options.devices) > sharing;
  const int64_t reserve = kGpuReserve + (has_peers ? enlarged_nccl_buffers() : 0);
  return less_reserve(memory_of(options.devices[i].index).free_bytes, reserve) / sharing;
}

Device::Parts make_parts(const DeviceGroupOptions& options, size_t i, int64_t capacity, OrderChecker* checker) {
  const DeviceId id = options.devices[i];
  const Memory memory = memory_of(id.index);
  if (capacity > memory.total_bytes) {
    throw OutOfMemory({fmt::format("{}: a capacity of {} was requested, but the GPU has {}; request less with ",
                                   id.str(), format_bytes(capacity), format_bytes(memory.total_bytes)),
                       settings::kMemoryBytes, ", or no capacity"},
                      {.device = id.str(),
                       .needed_bytes = capacity,
                       .capacity_bytes = memory.total_bytes,
                       .free_bytes = memory.free_bytes});
  }
  const int ordinal = static_cast<int>(i);
  Device::Parts parts;
  if (std::count(options.devices.begin(), options.devices.end(), id) > 1) parts.name = logical_name(id, i);
  parts.id = parts.target = id;
  parts.ordinal = ordinal;
  parts.trace = options.trace;
  parts.tf32 = options.tf32;
  parts.context_bytes = memory.total_bytes - memory.free_bytes;
  parts.pool = std::make_shared<Pool>(parts.name.empty() ? id.str() : parts.name, std::make_unique<CudaSlab>(id.index),
                                      capacity);
  const auto stream = [&](StreamRole role, cudaStream_t given) {
    return std::make_unique<CudaStream>(Stream::Identity{id, ordinal, role}, checker, given);
  };
  parts.compute = stream(StreamRole::compute, given_stream(options, i));
  parts.copy = stream(StreamRole::copy, nullptr);
  parts.communication = stream(StreamRole::communication, nullptr);
  return parts;
}

std::vector<OutsideBytes> outside_bytes(int64_t context_bytes, const std::vector<ExecContext*>& contexts) {
  std::vector<OutsideBytes> owners = {{"context", context_bytes}};
  for (ExecContext* ctx : contexts) {
    for (const OutsideBytes& more : ctx->plans().get<OutsideMemory>().owners) {
      const auto known = std::find_if(owners.begin(), owners.end(),
                                      [&](const OutsideBytes& o) { return std::string_view(o.owner) == more.owner; });
      known == owners.end() ? owners.push_back(more) : static_cast<void>(known->bytes += more.bytes);
    }
  }
  return owners;
}

int64_t used_bytes(int gpu) {
  const Memory memory = memory_of(gpu);
  return memory.total_bytes - memory.free_bytes;
}

void* allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  const DeviceScope scope(device_in_use());
  const cudaError_t code =
      cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(
        fmt::format("HostBuffer: cannot pin {} of host memory for GPUs; use smaller batches", format_bytes(bytes)),
        {.memory = MemoryShortage::Memory::host, .user = "HostBuffer", .needed_bytes = bytes});
  }
  VITRINE_CUDA_CHECK(code);
  return memory;
}

void free_pinned(void* memory) noexcept {
  avoid_unused_gpu();
  if (cudaFreeHost(memory) != cudaSuccess) cudaGetLastError();
}

}  // namespace vitrine::cuda
