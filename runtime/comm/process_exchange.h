// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"

namespace vitrine {

class ProcessGroup;

namespace comm {

/// What is summed (or otherwise reduced) over processes, in host memory.
struct SumBuffers {
  DType dtype = DType::f32;         // in which partial sums travel
  void* partials = nullptr;         // this process's; overwritten
  DType result_dtype = DType::f32;  // dtype; or 16 bits where that is f32: rounded once, at the end
  void* results = nullptr;          // may be the partials where the dtypes are equal
  void* scratch = nullptr;          // elements of dtype
  int64_t scratch_elements = 0;
  Reduction reduction = {};
};

/// Collectives between the processes of a process group, on host memory. They block, so they run on a stream's worker; one at a time. Sums are added
/// in f32, in an order that only depends on the number of processes: every process gets the same bits, in every run. Among few processes each gets
/// its part from all others and adds in rank order: two messages to each of them. Among more than kLargestDirect they add along a tree in O(log P)
/// rounds, a message or two each; partial sums then travel, so 16-bit sums need partials in f32.
///   tag     tells collectives apart: what another process does under another tag never mixes with this one
///   throws  CommError when the transport fails or after abort()
/// source  Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005 (direct, in segments that overlap); circulant.h (tree)
class ProcessExchange {
 public:
  static constexpr int kLargestDirect = 64;
  /// Bytes of a message of a direct sum. Smaller messages overlap better, larger ones cost fewer messages.
  static constexpr int64_t kPartBytes = int64_t{1} << 20;

  virtual ~ProcessExchange() = default;
  virtual std::string description() const = 0;

  /// The results (count) become the sum of all processes' partials; with a root, on the root only, and elsewhere they are undefined.
  ///   scratch  sum_scratch_elements(), or fewer down to twice the number of processes
  virtual void sum(const SumBuffers& buffers, int64_t count, std::optional<int> root, uint64_t tag) = 0;
  /// Of the partials, counts[r] elements of each rank one behind the other, the results (counts[this rank]) become the sum of this rank's.
  ///   scratch  scattered_scratch_elements()
  virtual void sum_scattered(const SumBuffers& buffers, std::span<const int64_t> counts, uint64_t tag) = 0;
  virtual void broadcast(void* bytes, int64_t count, int root, uint64_t tag) = 0;
  /// The root's bytes become those of all processes, counts[r] of rank r, one behind the other; the root's own are at their place already.
  virtual void gather(const void* mine, void* whole, std::span<const int64_t> counts, int root, uint64_t tag) = 0;
  /// The reverse. Nothing is copied on the root.
  virtual void scatter(const void* whole, void* mine, std::span<const int64_t> counts, int root, uint64_t tag) = 0;
  /// gather() to all: each process's own bytes are at their place already.
  virtual void all_gather(void* whole, std::span<const int64_t> counts, uint64_t tag) = 0;
  /// Sends and receives parts; what goes from one process to another arrives in the order of the parts.
  struct Part {
    int peer;
    void* data;
    int64_t bytes;
  };
  virtual void exchange(std::span<const Part> sends, std::span<const Part> receives, uint64_t tag) = 0;
  /// Waits until all processes have come here; returns the one that came last, or this one. So what follows is no longer waiting for who is late.
  virtual int meet(uint64_t tag) = 0;
  /// Messages that this process has sent.
  virtual int64_t messages_sent() const = 0;

  /// Ends what waits, now and later, with CommError(reason). From any thread.
  virtual void abort(const std::string& reason) = 0;
};

/// The offset of each process's elements, then their total.
std::vector<int64_t> offsets_of(std::span<const int64_t> counts);

/// Elements of scratch with which sums of `count` elements go fastest.
int64_t sum_scratch_elements(DType dtype, int64_t count, int processes, int largest_direct = ProcessExchange::kLargestDirect);
/// The same of scattered sums.
int64_t scattered_scratch_elements(DType dtype, std::span<const int64_t> counts, int largest_direct = ProcessExchange::kLargestDirect);

/// Remedy for process groups that did not meet over MPI.
inline constexpr const char* kUseMpirun = "start it with MPI instead: mpirun -np N vitrine ...";

/// An exchange over MPI's point-to-point messages.
/// throws UnsupportedError with the remedy when MPI is not built in or the process group did not meet over it
std::unique_ptr<ProcessExchange> make_mpi_exchange(const ProcessGroup& process_group, int largest_direct = ProcessExchange::kLargestDirect);

}  // namespace comm
}  // namespace vitrine
