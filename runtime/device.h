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

/// Where the devices of a process stand among those of all processes.
struct ProcessGroupPlace {
  int process = 0;
  std::vector<int> devices = {};  // of each process
  bool gpus = false;              // which exchange without memory of ours
};

/// How a group of devices is opened.
struct DeviceGroupOptions {
  std::vector<DeviceId> devices;
  /// The processes that this one works with; every process then opens its group at the same time. Null: it is alone.
  std::shared_ptr<ProcessGroup> process_group = {};
  /// Meta devices only: the place that they are planned for, in a process group that need not be there.
  std::optional<ProcessGroupPlace> place = {};
  /// Meta devices only: what messages call them; empty: by their ids.
  std::vector<std::string> names = {};
  /// Capacity of each device's pool: empty (of CPU devices what available_memory() tells, less a reserve, divided among the processes of
  /// this machine and their devices; of a GPU what is free, less 5 %, divided among its logical devices), one value for all, or one each.
  std::vector<int64_t> memory_bytes = {};
  /// Threads of each CPU device's team: empty (the process's cores divided among the devices), one value for all, or one each.
  std::vector<int> threads_per_device = {};
  bool check_order = false;
  TraceLevel trace = TraceLevel::phase;

  // CUDA devices only:
  bool tf32 = false;  // matrix products and convolutions may round their inputs to TF32
  /// A cudaStream_t for each device to compute on, made on that device and kept alive by the caller; empty: streams of our own.
  std::vector<void*> cuda_compute_streams = {};
  /// An ncclComm_t for each device, rank i on device i of a process group of these devices, kept alive by the caller; empty: communicators of our
  /// own.
  std::vector<void*> nccl_communicators = {};
  /// How long a collective waits on the host for its peers in this process before it is given up.
  int64_t comm_timeout_ms = 60000;
};

/// "cuda:0#1": a device that the list names several times, by its place in the list.
std::string logical_name(DeviceId id, size_t place);

/// One logical device: a pool, three streams with a context each.
class Device {
 public:
  struct Parts {
    DeviceId id;
    int ordinal = 0;
    std::string name;  // empty: id's
    std::shared_ptr<Pool> pool;
    std::unique_ptr<Stream> compute, copy, communication;
    std::vector<int> cores;  // CPU devices
    int thread_count = 1;
    TraceLevel trace = TraceLevel::off;
    bool tf32 = false;
  };
  explicit Device(Parts parts);
  ~Device();

  DeviceId id() const { return parts_.id; }
  /// Index in the group: the rank of its replica.
  int ordinal() const { return parts_.ordinal; }
  /// "cpu:1"; logical devices that share a GPU are told apart as "cuda:0#0", "cuda:0#1" by their place in the list.
  std::string name() const { return parts_.name.empty() ? parts_.id.str() : parts_.name; }
  int thread_count() const { return parts_.thread_count; }
  const std::vector<int>& cores() const { return parts_.cores; }
  Pool& pool() { return *parts_.pool; }
  ExecContext& compute() { return *compute_; }
  ExecContext& copy() { return *copy_; }
  ExecContext& communication() { return *communication_; }
  /// Bytes in use on this device's GPU, by anybody: pools, CUDA's context, libraries, other processes. 0 where there is no GPU.
  int64_t gpu_used_bytes() const;
  /// Blocks the host until all three streams are idle. throws the first error of any, all three then being idle and cleared.
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
  /// throws DeviceError or UnsupportedError naming the device that cannot be opened and why, ConfigError on lists of the wrong length.
  explicit DeviceGroup(const DeviceGroupOptions& options);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  int size() const { return static_cast<int>(devices_.size()); }
  Device& operator[](int i) { return *devices_[static_cast<size_t>(i)]; }
  const DeviceGroupOptions& options() const { return options_; }
  ProcessGroup* process_group() const { return options_.process_group.get(); }
  /// This process, how many there are, and how many devices each has. Ranks of devices go over all processes.
  int process() const { return place_.process; }
  int process_count() const { return static_cast<int>(place_.devices.size()); }
  const std::vector<int>& devices_of_processes() const { return place_.devices; }
  /// The rank of this group's first device, and the number of devices of all processes.
  int first_rank() const { return first_rank_; }
  int world_size() const { return world_size_; }
  /// What streams of these devices copy from and to without waiting: pinned memory for GPUs.
  HostMemory host_memory() const;
  OrderChecker* checker() { return checker_.get(); }
  /// What was noticed when opening (an affinity mask too narrow, say), for the program to print.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Meta devices in place of those of `options`, which need not be there: with their names and the capacities that they would have. A GPU that is
  /// not there has no limit (kUnlimitedBytes) unless `options` names one. throws ConfigError.
  static std::unique_ptr<DeviceGroup> planned(const DeviceGroupOptions& options);
  /// The same on meta, at the same place: what a plan runs on. Without limits to their memory, but for device `limited`, which has its capacity.
  std::unique_ptr<DeviceGroup> meta_twin(std::optional<int> limited = {}) const;
  static constexpr int64_t kUnlimitedBytes = int64_t{1} << 43;
  void synchronize();

 private:
  /// Tells the other processes of these devices, and learns of theirs. throws ConfigError, UnsupportedError on those that cannot work together.
  void join_process_group();

  void set_place(ProcessGroupPlace place);

  DeviceGroupOptions options_;
  ProcessGroupPlace place_;
  int first_rank_ = 0, world_size_ = 0;
  std::unique_ptr<OrderChecker> checker_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::string> warnings_;
};

}  // namespace vitrine
