// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/host_buffer.h>
#include <vitrine/runtime/order_checker.h>

namespace vitrine {

class ProcessGroup;
namespace cpu {
class SpinWatch;
}

/// Position of a process's devices among the devices of all processes.
struct ProcessGroupPlace {
  int process = 0;
  std::vector<int> devices = {};  // of each process
  bool gpus = false;              // GPUs exchange without memory of ours
  int local_processes = 1;        // on this machine, which share its memory
  std::vector<int> cores = {};    // for this process's CPU devices; empty: all that it may use
};

/// Threads that a CPU device can have.
inline constexpr int kMostThreadsPerDevice = 1024;

/// Options for opening a group of devices.
struct DeviceGroupOptions {
  std::vector<DeviceId> devices;
  /// The processes that take part, and the position of this one; join_processes() sets both. Null: this process alone.
  /// Meta devices need only a position, in a process group that does not have to exist.
  std::shared_ptr<ProcessGroup> process_group = {};
  std::optional<ProcessGroupPlace> place = {};
  /// Meta devices only: the devices that they stand for, whose libraries a plan is made for; empty: CPU devices.
  std::vector<DeviceId> stand_for = {};
  /// Meta devices only: the names to show in messages; empty: their ids.
  std::vector<std::string> names = {};
  /// Capacity of each device's pool: one value for all, one each, or empty. Empty means, for CPU devices,
  /// available_memory() less a reserve, divided among the processes of this machine and their devices; for a GPU, its
  /// free memory less 5 % and at least 1.5 GiB, divided among its logical devices.
  std::vector<int64_t> memory_bytes = {};
  /// Host memory that this process will take besides the pools, such as copies for checkpoints: the default capacity of
  /// CPU devices leaves room for it.
  int64_t host_bytes = 0;
  /// Threads of each CPU device: one value for all, one each, or empty (the process's cores divided among the devices);
  /// at most kMostThreadsPerDevice. For meta devices: of the CPU devices that they stand for; empty: one.
  std::vector<int> threads_per_device = {};
  bool check_order = false;
  TraceLevel trace = TraceLevel::phase;
  /// CPU devices only: lets convolutions of f32 run by Winograd's algorithm where it is faster: see conv2d_choices()
  /// and winograd_refusal().
  bool winograd = false;

  // CUDA devices only:
  bool tf32 = false;  // let matrix products and convolutions round their inputs to TF32
  /// A cudaStream_t for each device to compute on, created on that device and owned by the caller; empty: the group
  /// creates streams.
  std::vector<void*> cuda_compute_streams = {};
  /// An ncclComm_t for each device, where rank i is device i of this group, owned by the caller; empty: the group
  /// creates communicators. On blocking communicators comm_timeout_ms does not bound a call that waits for its peers;
  /// abort() ends it.
  std::vector<void*> nccl_communicators = {};
  /// How long a collective of CUDA devices waits on the host for its peers in this process before it fails.
  int64_t comm_timeout_ms = 60000;
};

/// Name of a device that a list contains several times, with its position in the list: "cuda:0#1".
std::string logical_name(DeviceId id, size_t place);

/// Memory of a GPU outside the pools.
struct OutsideBytes {
  const char* owner = "";  // "context" (CUDA's, and other processes), "cublaslt", "cudnn", "nccl"
  int64_t bytes = 0;
};

/// One logical device: a pool and three streams, each with a context.
class Device {
 public:
  struct Parts {
    DeviceId id;
    DeviceId target;  // the device that a meta device stands for, otherwise id
    int ordinal = 0;
    std::string name;  // empty: id.str()
    std::shared_ptr<Pool> pool;
    std::unique_ptr<Stream> compute, copy, communication;
    std::vector<int> cores;  // CPU devices
    int thread_count = 1;
    TraceLevel trace = TraceLevel::off;
    bool tf32 = false, winograd = false;
    int64_t context_bytes = 0;  // GPUs: in use before the pool and libraries take memory
  };
  explicit Device(Parts parts);
  ~Device();

  DeviceId id() const { return parts_.id; }
  /// The device whose libraries this device's work is for: id(), or the one that a meta device stands for.
  DeviceId target() const { return parts_.target; }
  /// Index in the group: the rank of its replica.
  int ordinal() const { return parts_.ordinal; }
  /// "cpu:1". Logical devices that share a GPU have their position in the list as a suffix: "cuda:0#0", "cuda:0#1".
  std::string name() const { return parts_.name.empty() ? parts_.id.str() : parts_.name; }
  int thread_count() const { return parts_.thread_count; }
  const std::vector<int>& cores() const { return parts_.cores; }
  Pool& pool() { return *parts_.pool; }
  const Pool& pool() const { return *parts_.pool; }
  ExecContext& compute() { return *compute_; }
  ExecContext& copy() { return *copy_; }
  ExecContext& communication() { return *communication_; }
  /// Bytes in use on this device's GPU by pools, the CUDA context, libraries and other processes. 0 if the device is
  /// not a GPU.
  int64_t gpu_used_bytes() const;
  /// Parts of that: what was in use when the device was opened, and what libraries have taken for this device since,
  /// each measured as the difference that its creation made (other users of the GPU may take or free memory at the same
  /// time). Empty if the device is not a GPU. requires that no thread issues work to the device
  std::vector<OutsideBytes> outside_bytes();
  /// Blocks the host until all three streams are idle. throws the first error of any stream; afterwards all three are
  /// idle and without error.
  void synchronize();
  /// See Stream::begin_synchronize().
  void begin_synchronize();

 private:
  Parts parts_;
  std::unique_ptr<ExecContext> compute_, copy_, communication_;
};

/// The devices of a process, in the order they were listed.
class DeviceGroup {
 public:
  /// throws DeviceError or UnsupportedError naming the device that cannot be opened and the reason, ConfigError for
  /// lists of the wrong length.
  explicit DeviceGroup(const DeviceGroupOptions& options);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  int size() const { return static_cast<int>(devices_.size()); }
  Device& operator[](int i) { return *devices_[static_cast<size_t>(i)]; }
  const Device& operator[](int i) const { return *devices_[static_cast<size_t>(i)]; }
  /// Device::target() of the first device; all have the same backend.
  DeviceId target() const { return devices_[0]->target(); }
  const DeviceGroupOptions& options() const { return options_; }
  ProcessGroup* process_group() const { return options_.process_group.get(); }
  /// Index of this process, the number of processes, and the number of devices of each. Ranks of devices count across
  /// all processes.
  int process() const { return place_.process; }
  int process_count() const { return static_cast<int>(place_.devices.size()); }
  const std::vector<int>& devices_of_processes() const { return place_.devices; }
  /// Rank of this group's first device, and the number of devices of all processes.
  int first_rank() const { return first_rank_; }
  int world_size() const { return world_size_; }
  /// The kind of host memory that streams of these devices copy asynchronously: pinned for GPUs.
  HostMemory host_memory() const;
  OrderChecker* checker() { return checker_.get(); }
  /// Warnings from opening the devices (for example, an affinity mask that is too narrow), for the program to print.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Creates meta devices with the names and capacities of the devices in `options`, which do not have to exist. A
  /// missing GPU has no limit (kUnlimitedBytes) unless `options` sets one. throws ConfigError.
  static std::unique_ptr<DeviceGroup> planned(const DeviceGroupOptions& options);
  /// Creates meta devices at the same position, for planning. Their memory is unlimited, except for device `limited`,
  /// which keeps its capacity.
  std::unique_ptr<DeviceGroup> meta_twin(std::optional<int> limited = {}) const;
  /// Creates meta devices like these, of the same capacities, at the position of another process.
  /// requires  meta devices, and that the process has as many
  std::unique_ptr<DeviceGroup> in_process(int process) const;
  static constexpr int64_t kUnlimitedBytes = int64_t{1} << 43;
  void synchronize();

 private:
  void open();
  void close() noexcept;

  DeviceGroupOptions options_;
  ProcessGroupPlace place_;
  int first_rank_ = 0, world_size_ = 0;
  std::unique_ptr<OrderChecker> checker_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::string> warnings_;
  std::unique_ptr<cpu::SpinWatch> spin_watch_;  // CPU devices with teams
};

}  // namespace vitrine
