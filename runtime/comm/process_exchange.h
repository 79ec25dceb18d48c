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
#include "runtime/reason.h"

namespace vitrine {

class ProcessGroup;

namespace comm {

/// Buffers of a sum (or another reduction) over processes, in host memory.
struct SumBuffers {
  DType dtype = DType::f32;         // of partial sums in messages
  void* partials = nullptr;         // of this process; overwritten by more than kLargestDirect processes
  DType result_dtype = DType::f32;  // dtype, or a 16-bit type if dtype is f32, rounded once at the end
  void* results = nullptr;          // may be the partials if the dtypes are equal
  void* scratch = nullptr;          // elements of dtype
  int64_t scratch_elements = 0;
  Combination combination = {};
};

/// Contributions to a sum along a tree, in host memory.
struct TreeBuffers {
  DType dtype = DType::f32;
  int64_t count = 0;                       // elements of a contribution
  std::vector<int64_t> counts = {};        // of each process's results, which follow each other; empty: all get all
  std::vector<int> processes = {};         // of each contribution, in the order of their nodes
  std::vector<uint8_t> folds = {};         // TreeOrder of those nodes
  std::vector<const void*> partials = {};  // of this process
  void* results = nullptr;                 // may be one of the partials
  void* scratch = nullptr;                 // elements of dtype
  int64_t scratch_elements = 0;
};

/// Collectives between the processes of a process group, on host memory. They block, so they run on a stream's worker,
/// one at a time. Sums are added in f32, in an order that depends only on the number of processes: every process gets
/// the same bits, in every run. With few processes, each receives its part from all others and adds in rank order: two
/// messages to each peer. With more than kLargestDirect they add along a tree in O(log P) rounds of one or two
/// messages; partial sums are then sent, so 16-bit sums need partials in f32. On one machine direct sums pass through
/// memory that all processes map (shared_sums.h), with the same bits.
///   tag     separates collectives: messages under different tags never mix
///   throws  CommError if the transport fails or after abort()
/// source  Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005 (direct, in segments
///         that overlap); circulant.h (tree)
class ProcessExchange {
 public:
  static constexpr int kLargestDirect = 64;
  /// Bytes of a message of a direct sum. Smaller messages overlap better, larger ones cost fewer messages.
  static constexpr int64_t kPartBytes = int64_t{1} << 20;

  virtual ~ProcessExchange() = default;
  virtual std::string description() const = 0;

  /// Sums the partials (count) of all processes into the results; with a root, only there, and the results elsewhere
  /// are undefined.
  ///   scratch  sum_scratch_elements(), or fewer, at least twice the number of processes; for sums by messages
  virtual void sum(const SumBuffers& buffers, int64_t count, std::optional<int> root, uint64_t tag) = 0;
  /// The partials consist of counts[r] elements for each rank r. Sums this rank's elements over all processes into the
  /// results (counts[this rank]).
  ///   scratch  scattered_scratch_elements()
  virtual void sum_scattered(const SumBuffers& buffers, std::span<const int64_t> counts, uint64_t tag) = 0;
  /// Every process's results become its part of the sum of all contributions. Only bytes travel: each process adds
  /// the contributions to its part of every segment.
  ///   scratch  tree_scratch_elements()
  virtual void tree_sum(const TreeBuffers& buffers, uint64_t tag) = 0;
  virtual void broadcast(void* bytes, int64_t count, int root, uint64_t tag) = 0;
  /// Collects counts[r] bytes from each rank r on the root, in rank order. The root's own bytes must already be in
  /// place.
  virtual void gather(const void* mine, void* whole, std::span<const int64_t> counts, int root, uint64_t tag) = 0;
  /// The reverse of gather(). Copies nothing on the root.
  virtual void scatter(const void* whole, void* mine, std::span<const int64_t> counts, int root, uint64_t tag) = 0;
  /// gather() to all processes. Each process's own bytes must already be in place.
  virtual void all_gather(void* whole, std::span<const int64_t> counts, uint64_t tag) = 0;
  /// Sends and receives parts. Parts from one process to another arrive in order.
  struct Part {
    int peer;
    void* data;
    int64_t bytes;
  };
  virtual void exchange(std::span<const Part> sends, std::span<const Part> receives, uint64_t tag) = 0;
  /// Waits until all processes have arrived and returns the last one, or this one. Work after it does not include
  /// waiting for late processes.
  virtual int barrier(uint64_t tag) = 0;
  /// Number of messages that this process has sent.
  virtual int64_t messages_sent() const = 0;

  /// Aborts pending and later calls with CommError(reason). Thread-safe.
  virtual void abort(const Reason& reason) = 0;
};

/// The offset of each process's elements, then their total.
std::vector<int64_t> offsets_of(std::span<const int64_t> counts);

/// Elements of scratch memory with which sums of `count` elements are fastest.
int64_t sum_scratch_elements(DType dtype, int64_t count, int processes,
                             int largest_direct = ProcessExchange::kLargestDirect);
/// The same for scattered sums.
int64_t scattered_scratch_elements(DType dtype, std::span<const int64_t> counts,
                                   int largest_direct = ProcessExchange::kLargestDirect);
/// The same for sums of so many contributions along a tree.
int64_t tree_scratch_elements(DType dtype, int64_t count, int processes, int64_t contributions);

/// Remedy for process groups that are not connected over MPI.
inline constexpr const char* kUseMpirun = "start it with MPI instead: mpirun -np N vitrine ...";

/// How processes exchange; for tests.
struct ExchangeOptions {
  int largest_direct = ProcessExchange::kLargestDirect;
  bool shared_memory = true;     // where the processes can map it
  bool past_the_caches = false;  // write to it past the caches from the start, without having measured
};

/// An exchange over MPI's point-to-point messages, and through shared memory. All processes must call it, in the same
/// order as other exchanges. throws UnsupportedError with the remedy when MPI is not built in or the process group is
/// not connected over it
std::unique_ptr<ProcessExchange> make_mpi_exchange(ProcessGroup& process_group, const ExchangeOptions& options = {});

}  // namespace comm
}  // namespace vitrine
