// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/call.h"
#include "runtime/comm/local_communicator.h"
#include "runtime/comm/process_exchange.h"
#include "runtime/process_group/process_group.h"

namespace vitrine::comm {

/// What the communicators of one process share: the communicators among its devices, the exchange with the other
/// processes, and the ranks of each process. throws like make_process_communicators()
class ProcessState {
 public:
  ProcessState(DeviceGroup& devices, std::vector<std::unique_ptr<LocalCommunicator>> local_ends);
  ~ProcessState();
  ProcessState(const ProcessState&) = delete;
  ProcessState& operator=(const ProcessState&) = delete;

  /// Aborts the communicators and the exchange.
  void end(const Reason& reason);
  /// Waits for the other processes and then runs `work`; a failure of the transport fails the process group.
  ///   traced  records the wait and the late rank; may be null
  void exchange_with_peers(Operation operation, uint64_t tag, CpuStream* traced,
                           const std::function<void(ProcessExchange&)>& work);

  /// Destination and source of a rank's messages; -1: none.
  struct Route {
    int to = -1, from = -1;
  };
  /// Registers a device's destination and source for send_receive. Called before the devices synchronize.
  void add_route(uint64_t tag, int device, Route route);
  /// Exchanges the messages of this process's ranks, whose inputs and outputs of `bytes` bytes each are contiguous.
  void send_and_receive(std::byte* inputs, std::byte* outputs, int64_t bytes, uint64_t tag);

  int first_rank(int of_process) const { return first_ranks_[static_cast<size_t>(of_process)]; }
  int process_of(int rank) const;
  std::vector<int> processes_of_ranks() const;
  /// Dtype of partial sums sent between processes: f32 if 16 bits would be rounded more than once.
  DType partial_dtype(DType dtype) const {
    return unrounded_ && (dtype == DType::f16 || dtype == DType::bf16) ? DType::f32 : dtype;
  }

  std::vector<std::unique_ptr<LocalCommunicator>> locals;
  std::vector<int> counts;  // number of devices of each process
  int process;
  int number = 0;                               // number of this group in the process group
  bool plans_gpus = false;                      // meta devices that stand for GPUs: need no memory
  std::shared_ptr<ProcessGroup> process_group;  // null on meta
  std::unique_ptr<ProcessExchange> exchange;    // null on meta

 private:
  void barrier(Operation operation, uint64_t tag, CpuStream* traced);
  std::vector<Route> take_routes(uint64_t tag);

  uint64_t handler_ = 0;
  std::vector<int> first_ranks_;  // of each process, and the end
  bool unrounded_ = false;
  std::mutex routes_mutex_;
  std::map<uint64_t, std::vector<Route>> routes_;                      // by tag
  std::vector<std::array<std::string, kOperationCount>> wait_causes_;  // for each process: "rank 2 in all_reduce"
};

}  // namespace vitrine::comm

namespace vitrine {

/// Creates communicators for CPU (or meta) devices in a process group with several processes. The devices of a process
/// sum and copy as in one process, and the first of them exchanges data with the other processes over MPI. Ranks count
/// the devices of all processes, in the order of the processes. 16-bit sums of several devices in a process, or of many
/// processes, are sent in f32 and rounded once. Every collective is reported to the process group, so that it can name
/// late ranks. Scratch memory comes from the first device's pool, Category::communication. throws UnsupportedError if
/// the processes cannot exchange data over MPI.
std::vector<std::unique_ptr<Communicator>> make_process_communicators(
    DeviceGroup& devices, std::vector<std::unique_ptr<LocalCommunicator>> locals);

}  // namespace vitrine
