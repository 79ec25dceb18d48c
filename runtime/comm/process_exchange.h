// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"

namespace vitrine {

class World;

namespace comm {

/// Collectives between the processes of a world, on host memory. They block, so they run on a stream's worker; one at a time. Sums are added in f32,
/// in rank order, and rounded once.
///   tag     tells collectives apart: what another process does under another tag never mixes with this one
///   throws  CommError when the transport fails or after abort()
class ProcessExchange {
 public:
  virtual ~ProcessExchange() = default;
  virtual std::string description() const = 0;

  /// inout (count) becomes the sum (or what `reduction` says) over all processes; with a root, on the root only, and elsewhere it is undefined.
  ///   scratch  exchange_scratch_elements() elements, or fewer down to twice the number of processes
  /// source  reduce-scatter and all-gather by direct exchange, in segments that overlap: Thakur et al., "Optimization of Collective Communication
  /// Operations in MPICH", 2005
  virtual void sum(DType dtype, Reduction reduction, void* inout, int64_t count, std::optional<int> root, void* scratch, int64_t scratch_elements,
                   uint64_t tag) = 0;
  /// Of inout, counts[r] elements of each rank one behind the other, this rank's become the sum over all processes; the others' are undefined.
  virtual void sum_scattered(DType dtype, Reduction reduction, void* inout, std::span<const int64_t> counts, void* scratch, int64_t scratch_elements,
                             uint64_t tag) = 0;
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

  /// Ends what waits, now and later, with CommError(reason). From any thread.
  virtual void abort(const std::string& reason) = 0;
};

/// Elements of scratch with which sums of `count` elements go fastest.
int64_t exchange_scratch_elements(DType dtype, int64_t count, int processes);

/// Over MPI's point-to-point messages. throws UnsupportedError with the remedy where MPI is not built in or the world has not met over it.
std::unique_ptr<ProcessExchange> make_mpi_exchange(const World& world);

}  // namespace comm
}  // namespace vitrine
