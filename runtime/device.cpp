// SPDX-License-Identifier: Apache-2.0
#include "runtime/device.h"

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>

#include <fmt/format.h>

#include "runtime/cpu/affinity.h"
#include "runtime/cpu/instruction_set.h"
#include "runtime/cpu/slab.h"
#include "runtime/cpu/spin_watch.h"
#include "runtime/cpu/stream.h"
#include "runtime/cuda/device.h"
#include "runtime/error.h"
#include "runtime/gpu_info.h"
#include "runtime/memory/available.h"
#include "runtime/memory/slab.h"
#include "runtime/meta/stream.h"
#include "runtime/settings.h"

namespace vitrine {
namespace {

/// Slab of a meta device: addresses that are never accessed. Where pointers have 64 bits, each meta device has
/// different ones.
class MetaSlab final : public Slab {
 public:
  explicit MetaSlab(int ordinal) : base_(static_cast<uintptr_t>((uint64_t(ordinal + 1) << 44) + kBase)) {}
  void* base() const override { return reinterpret_cast<void*>(base_); }  // NOLINT: not a pointer to anything
  int64_t size_bytes() const override { return size_; }
  void grow(int64_t bytes) override { size_ = bytes; }

 private:
  // Where pointers have 32 bits, addresses wrap around. None of elements of 2 bytes and more is null, which would be an
  // omitted argument.
  static constexpr uint64_t kBase = sizeof(void*) < sizeof(uint64_t) ? 1 : 0;
  uintptr_t base_;
  int64_t size_ = 0;
};

template <class T>
void check_list(const std::vector<T>& values, size_t devices, Setting what) {
  if (!values.empty() && values.size() != 1 && values.size() != devices) {
    throw ConfigError(
        {what, fmt::format(": {} values for {} devices; give one for all or one each", values.size(), devices)});
  }
  for (const T value : values) {
    if (value <= 0) throw ConfigError({what, fmt::format(": {} must be greater than 0", value)});
  }
}

/// The device itself, or the one that a meta device stands for.
DeviceId target_of(const DeviceGroupOptions& options, size_t i) {
  return options.stand_for.empty() ? options.devices[i] : options.stand_for[i];
}

/// What each CPU device gets of the available memory. It changes from moment to moment: read once for a whole group, so
/// that equal devices get equal capacities.
int64_t cpu_share(const DeviceGroupOptions& options) {
  if (!options.memory_bytes.empty() || target_of(options, 0).backend != Backend::cpu) return 0;
  const int processes = options.place ? options.place->local_processes : 1;
  return std::max<int64_t>(
      1, (less_reserve(available_memory().bytes) / processes - options.host_bytes) / std::ssize(options.devices));
}

int64_t capacity_of(const DeviceGroupOptions& options, size_t i, int64_t cpu_share) {
  if (!options.memory_bytes.empty()) return options.memory_bytes[options.memory_bytes.size() == 1 ? 0 : i];
  if (options.devices[i].backend == Backend::cuda) return cuda::default_capacity(options, i);
  return target_of(options, i).backend == Backend::meta ? DeviceGroup::kUnlimitedBytes : cpu_share;
}

Device::Parts meta_parts(const DeviceGroupOptions& options, size_t i, int64_t capacity, OrderChecker* checker) {
  const DeviceId id = options.devices[i];
  const int ordinal = static_cast<int>(i);
  Device::Parts parts;
  parts.id = id;
  parts.target = target_of(options, i);
  if (!options.threads_per_device.empty())
    parts.thread_count = options.threads_per_device[options.threads_per_device.size() == 1 ? 0 : i];
  parts.ordinal = ordinal;
  parts.trace = options.trace;
  parts.winograd = options.winograd;
  if (!options.names.empty()) parts.name = options.names[i];
  parts.pool =
      std::make_shared<Pool>(parts.name.empty() ? id.str() : parts.name, std::make_unique<MetaSlab>(ordinal), capacity);
  const auto stream = [&](StreamRole role) {
    return std::make_unique<MetaStream>(Stream::Identity{id, ordinal, role}, checker);
  };
  parts.compute = stream(StreamRole::compute);
  parts.copy = stream(StreamRole::copy);
  parts.communication = stream(StreamRole::communication);
  return parts;
}

Device::Parts cpu_parts(const DeviceGroupOptions& options, size_t i, int64_t capacity, OrderChecker* checker,
                        const CoreShare& share) {
  const DeviceId id = options.devices[i];
  const int ordinal = static_cast<int>(i);
  Device::Parts parts;
  parts.id = parts.target = id;
  parts.ordinal = ordinal;
  parts.cores = share.cores;
  parts.thread_count = share.threads;
  parts.trace = options.trace;
  parts.winograd = options.winograd;
  parts.pool = std::make_shared<Pool>(id.str(), std::make_unique<CpuSlab>(ordinal, capacity), capacity);
  const auto stream = [&](StreamRole role, const std::vector<int>& cores, int threads) {
    return std::make_unique<CpuStream>(Stream::Identity{id, ordinal, role}, checker,
                                       CpuStream::Options{cores, threads, options.trace});
  };
  parts.compute = stream(StreamRole::compute, share.cores, share.threads);
  parts.copy = stream(StreamRole::copy, share.helper_cores, 1);
  parts.communication = stream(StreamRole::communication, share.helper_cores, 1);
  return parts;
}

/// Synchronizes all, then throws the first error.
template <class Pointers>
void synchronize_all(const Pointers& all) {
  std::exception_ptr first;
  for (const auto& one : all) {
    try {
      one->synchronize();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

/// Threads that the CPU devices of a group would have that is opened on this machine as one of the processes of
/// `place`, which share its cores.
std::vector<int> threads_of(const DeviceGroupOptions& options, const ProcessGroupPlace& place) {
  std::vector<int> cores = available_cores();
  std::optional<double> quota = cpu_quota();
  if (const size_t processes = place.devices.size(); processes > 1) {
    const size_t part = std::max<size_t>(1, cores.size() / processes);
    if (quota) *quota *= static_cast<double>(part) / static_cast<double>(cores.size());
    cores.resize(part);
  }
  std::vector<std::string> warnings;  // for the run
  std::vector<int> threads;
  for (const CoreShare& share : divide_cores(cores, static_cast<int>(options.devices.size()),
                                             options.threads_per_device, warnings, true, quota)) {
    threads.push_back(share.threads);
  }
  return threads;
}

}  // namespace

std::string logical_name(DeviceId id, size_t place) { return fmt::format("{}#{}", id.str(), place); }

Device::Device(Parts parts) : parts_(std::move(parts)) {
  const bool for_gpu = parts_.target.backend == Backend::cuda;
  const ExecContext::Options compute{parts_.trace, parts_.thread_count, parts_.tf32, for_gpu, parts_.winograd};
  const ExecContext::Options single{parts_.trace, 1, parts_.tf32, for_gpu};
  compute_ = std::make_unique<ExecContext>(parts_.id, parts_.ordinal, *parts_.compute, parts_.pool, compute);
  copy_ = std::make_unique<ExecContext>(parts_.id, parts_.ordinal, *parts_.copy, parts_.pool, single);
  communication_ = std::make_unique<ExecContext>(parts_.id, parts_.ordinal, *parts_.communication, parts_.pool, single);
}

Device::~Device() {
  // Plans and handles of libraries refer to their stream, and their work must be done.
  try {
    synchronize();
  } catch (...) {  // NOLINT: a destructor cannot report the error
  }
  for (ExecContext* context : {compute_.get(), copy_.get(), communication_.get()}) context->forget_plans();
  parts_.pool->forget_checker();
  // Streams before contexts, to which their queued work refers.
  parts_.compute.reset();
  parts_.copy.reset();
  parts_.communication.reset();
}

int64_t Device::gpu_used_bytes() const {
  return parts_.id.backend == Backend::cuda ? cuda::used_bytes(parts_.id.index) : 0;
}

std::vector<OutsideBytes> Device::outside_bytes() {
  if (parts_.id.backend != Backend::cuda) return {};
  return cuda::outside_bytes(parts_.context_bytes, {compute_.get(), copy_.get(), communication_.get()});
}

void Device::begin_synchronize() {
  for (Stream* stream : {parts_.compute.get(), parts_.copy.get(), parts_.communication.get()})
    stream->begin_synchronize();
}

void Device::synchronize() {
  begin_synchronize();
  synchronize_all(std::array{parts_.compute.get(), parts_.copy.get(), parts_.communication.get()});
}

DeviceGroup::DeviceGroup(const DeviceGroupOptions& options) : options_(options) { open(); }

void DeviceGroup::open() {
  const size_t count = options_.devices.size();
  if (count == 0) throw ConfigError("devices: the list is empty; name at least one, such as cpu:0");
  check_list(options_.memory_bytes, count, settings::kMemoryBytes);
  check_list(options_.threads_per_device, count, settings::kThreadsPerDevice);
  for (const int threads : options_.threads_per_device) {
    if (threads > kMostThreadsPerDevice) {
      throw ConfigError(
          {settings::kThreadsPerDevice,
           fmt::format(": expected at most {}, got {}; a device is fastest with a thread for each of its cores",
                       kMostThreadsPerDevice, threads)});
    }
  }
  if (!options_.names.empty() && options_.names.size() != count)
    throw ConfigError("devices: expected one name for each device, or no names");
  if (!options_.stand_for.empty() && options_.stand_for.size() != count) {
    throw ConfigError("devices: expected one device that each meta device stands for, or none");
  }
  if (options_.process_group && !options_.place)
    throw ConfigError("devices: a process group without this process's place in it; call join_processes()");
  place_ = options_.place.value_or(ProcessGroupPlace{0, {static_cast<int>(count)}});
  const auto before = place_.devices.begin() + place_.process;
  first_rank_ = std::accumulate(place_.devices.begin(), before, 0);
  world_size_ = std::accumulate(before, place_.devices.end(), first_rank_);
  if (options_.check_order && checker_ == nullptr) checker_ = std::make_unique<OrderChecker>();
  std::vector<CoreShare> shares;
  if (options_.devices[0].backend == Backend::cpu) {
    cpu::instruction_set();  // throws if the environment names one that is not there
    const std::vector<int> available = available_cores();
    const std::vector<int>& cores = place_.cores.empty() ? available : place_.cores;
    // Processes that share cores share their quota.
    std::optional<double> quota = cpu_quota();
    if (quota) *quota *= static_cast<double>(cores.size()) / static_cast<double>(available.size());
    shares = divide_cores(cores, static_cast<int>(count), options_.threads_per_device, warnings_,
                          cores.size() < available.size(), quota);
    if (std::any_of(shares.begin(), shares.end(), [](const CoreShare& share) { return share.threads > 1; }))
      spin_watch_ = cpu::SpinWatch::start();
  }
  if (options_.devices[0].backend == Backend::cuda) cuda::open_gpus(options_);
  std::vector<int64_t> capacities;  // queried before the first device takes memory
  const int64_t share = cpu_share(options_);
  for (size_t i = 0; i < count; ++i) capacities.push_back(capacity_of(options_, i, share));
  for (size_t i = 0; i < count; ++i) {
    const DeviceId id = options_.devices[i];
    if (id.backend != options_.devices[0].backend)
      throw ConfigError("devices: all devices of a group must have the same backend");
    switch (id.backend) {
      case Backend::meta:
        devices_.push_back(std::make_unique<Device>(meta_parts(options_, i, capacities[i], checker_.get())));
        break;
      case Backend::cpu:
        devices_.push_back(std::make_unique<Device>(cpu_parts(options_, i, capacities[i], checker_.get(), shares[i])));
        break;
      case Backend::cuda:
        devices_.push_back(std::make_unique<Device>(cuda::make_parts(options_, i, capacities[i], checker_.get())));
        break;
    }
  }
}

DeviceGroup::~DeviceGroup() { close(); }

void DeviceGroup::close() noexcept {
  // Work on one device may access the memory of another, so all work ends before the first device is destroyed.
  try {
    synchronize_all(devices_);
  } catch (...) {  // NOLINT: synchronize() reports failures to callers that need them
  }
  devices_.clear();
}

HostMemory DeviceGroup::host_memory() const {
  return options_.devices[0].backend == Backend::cuda ? HostMemory::pinned : HostMemory::pageable;
}

std::unique_ptr<DeviceGroup> DeviceGroup::planned(const DeviceGroupOptions& options) {
  if (options.devices.empty()) throw ConfigError("devices: the list is empty; name at least one, such as cpu:0");
  check_list(options.memory_bytes, options.devices.size(), settings::kMemoryBytes);
  const Backend backend = options.devices[0].backend;
  const int gpus = backend == Backend::cuda ? cuda_device_count() : 0;
  DeviceGroupOptions twin;
  twin.check_order = options.check_order;
  twin.place = options.place.value_or(ProcessGroupPlace{0, {static_cast<int>(options.devices.size())}});
  twin.place->gpus = twin.place->gpus || backend == Backend::cuda;
  twin.tf32 = options.tf32;
  twin.winograd = options.winograd;
  twin.host_bytes = options.host_bytes;
  check_list(options.threads_per_device, options.devices.size(), settings::kThreadsPerDevice);
  if (backend != Backend::cuda) twin.threads_per_device = threads_of(options, *twin.place);
  for (size_t i = 0; i < options.devices.size(); ++i) {
    const DeviceId id = options.devices[i];
    if (id.backend != backend) throw ConfigError("devices: all devices of a group must have the same backend");
    const bool shared = std::count(options.devices.begin(), options.devices.end(), id) > 1;
    const bool absent = backend == Backend::cuda && id.index >= gpus && options.memory_bytes.empty();
    twin.devices.push_back({Backend::meta, static_cast<int>(i)});
    twin.stand_for.push_back(id);
    twin.names.push_back(shared ? logical_name(id, i) : id.str());
    if (backend != Backend::cpu || !options.memory_bytes.empty())
      twin.memory_bytes.push_back(absent ? kUnlimitedBytes : capacity_of(options, i, 0));
  }
  return std::make_unique<DeviceGroup>(twin);
}

std::unique_ptr<DeviceGroup> DeviceGroup::meta_twin(std::optional<int> limited) const {
  DeviceGroupOptions twin;
  twin.place = place_;
  if (devices_[0]->id().backend == Backend::cuda) twin.place->gpus = true;
  twin.check_order = options_.check_order;
  twin.tf32 = options_.tf32;
  twin.winograd = options_.winograd;
  for (size_t i = 0; i < devices_.size(); ++i) {
    twin.devices.push_back({Backend::meta, static_cast<int>(i)});
    twin.stand_for.push_back(devices_[i]->target());
    twin.threads_per_device.push_back(devices_[i]->thread_count());
    twin.names.push_back(devices_[i]->name());
    twin.memory_bytes.push_back(limited == static_cast<int>(i) ? devices_[i]->pool().capacity_bytes()
                                                               : kUnlimitedBytes);
  }
  return std::make_unique<DeviceGroup>(twin);
}

std::unique_ptr<DeviceGroup> DeviceGroup::in_process(int process) const {
  VITRINE_ASSERT(devices_[0]->id().backend == Backend::meta, "other processes open their own devices");
  DeviceGroupOptions other = options_;
  other.place->process = process;
  other.memory_bytes.clear();
  for (const auto& device : devices_) other.memory_bytes.push_back(device->pool().capacity_bytes());
  return std::make_unique<DeviceGroup>(other);
}

void DeviceGroup::synchronize() {
  for (auto& device : devices_) device->begin_synchronize();
  synchronize_all(devices_);
}

}  // namespace vitrine
