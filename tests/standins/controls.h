// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

/// What tests set and ask of the imitated GPUs. Everything applies to the whole process; between tests, reset().
namespace vitrine::standins {

enum class Driver { present, missing, without_gpu };

struct Machine {
  int device_count = 8;
  int64_t capacity_bytes = int64_t{4} << 30;  // of each device, touched lazily; kContextBytes of it go with a device's first use
  bool peer_access = true;
  int compute_major = 9, compute_minor = 0;
  Driver driver = Driver::present;
};
inline constexpr int64_t kContextBytes = int64_t{8} << 20;

/// Makes another machine: fresh devices without errors, fresh capacity. Objects of the old one must be gone.
/// throws std::logic_error saying what is left.
///   CUDA_VISIBLE_DEVICES applies at each configure() and at the process's start, as with CUDA; a process may also be started with
///   VITRINE_STANDIN_DEVICES=N (0: no GPU; "no-driver").
void configure(const Machine& machine);
/// configure() with the defaults.
void reset();

/// Takes this thread for the one of a process of its own that works with these devices: what waits for all work of its process waits for theirs only,
/// until the thread ends.
void be_process_of(std::vector<int> devices);

/// Streams, events, memory on devices and pinned, handles, communicators: how many are not destroyed yet.
int64_t live_objects();
/// Bytes that cudaMalloc has given out on a device.
int64_t allocated_bytes(int device);

/// Whether anybody has used the device: made it current, or called what needs one while it was.
bool has_context(int device);

/// The next cudaMalloc on the device finds no memory.
void fail_next_malloc(int device);
/// The n-th launch on the device from now on (1: the next) fails while it runs: cudaErrorIllegalAddress, which stays until configure().
void fail_launch(int device, int64_t n);

/// NCCL, by rank in any group, until configure(). A call is a collective, or a group of transfers; n = 1: the next of this rank.
void hang_nccl_init(int rank);         // the rank's next communicator never joins its group
void hang_nccl_call(int rank, int n);  // the rank never comes to its n-th call from now on
void fail_nccl_call(int rank, int n);  // the same, and its communicator reports ncclSystemError
void break_nccl(int rank);             // the rank's communicators report ncclSystemError from now on

}  // namespace vitrine::standins
