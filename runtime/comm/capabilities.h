// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <vitrine/runtime/exec_context.h>

/// What some communicators can do beyond moving data. A communicator that can also is a class of this file, and all
/// ranks of a group can or none.
namespace vitrine {

class Communicator;

/// Sums that are squared while they are in the cache.
class SquaringCommunicator {
 public:
  virtual ~SquaringCommunicator() = default;
  /// all_reduce(inout) of f32 that also sums the squares of the first `squared` elements of the result by tiles
  /// (runtime/square_sums.h).
  ///   squares  (square_tiles(squared), 2) i32
  /// throws as Communicator
  virtual void all_reduce_and_square(ExecContext& ctx, View inout, int64_t squared, View squares) = 0;
};

/// Ranks that go in step on request. CUDA loads a kernel when a GPU first runs it, and meanwhile the thread may wait
/// for all work of that GPU, and the other threads of the process for this thread: with a collective under way that
/// waits for one of them, all wait for ever. Several ranks of one process therefore go in step while kernels may be
/// new: none issues a collective before all have issued what comes before it, and none goes on before it is done.
class RanksInStep {
 public:
  virtual ~RanksInStep() = default;
  /// Holds for all ranks of the group. Call while none of them issues. At first it is off.
  virtual void set_in_step(bool in_step) = 0;
};

/// Collectives that a rank issued to streams that were capturing work: every launch of that work issues them again.
class CapturedCollectives {
 public:
  CapturedCollectives() = default;
  CapturedCollectives(const CapturedCollectives&) = delete;
  CapturedCollectives& operator=(const CapturedCollectives&) = delete;
  virtual ~CapturedCollectives() = default;
};

/// Collectives in captured work (Stream::begin_capture).
class CollectiveCapture {
 public:
  virtual ~CollectiveCapture() = default;
  /// The communicator as one whose collectives can be captured; null if they cannot, or there is none.
  static CollectiveCapture* of(Communicator* communicator);

  /// Captures the collectives that are issued until end_capture(), on streams that are capturing. All ranks of the
  /// group capture the same ones, and launch them together: NCCL does not let a rank issue what another rank launches,
  /// nor launch another capture's. The captured work is destroyed before the communicators.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<CapturedCollectives> end_capture() = 0;
  /// Call before each launch of the captured work: its collectives are issued again, in `step`. throws CommError if the
  /// group is broken
  virtual void begin_launch(const CapturedCollectives& collectives, int64_t step) = 0;

 private:
  virtual bool can_capture() const = 0;
};

}  // namespace vitrine
