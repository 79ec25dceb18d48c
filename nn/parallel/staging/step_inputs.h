// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/step_values.h"
#include "runtime/host_buffer.h"
#include "runtime/view.h"

/// Private to nn/parallel.
namespace vitrine {

/// What differs from step to step, in host memory that a GPU's kernels read: the host writes it before it issues a
/// micro-batch, or launches its CUDA graph. Two steps are in flight, and a graph contains addresses: even and odd steps
/// have memory of their own.
class StepInputs {
 public:
  ///   micro_batches  of a step      samples, labels  the most of a micro-batch      memory  pinned, for GPUs
  StepInputs(int64_t micro_batches, int64_t samples, int64_t labels, HostMemory memory);

  /// What follows is about optimizer step `step`.
  ///   stop_vote  whether this process votes to stop
  void begin_step(int64_t step, bool stop_vote);
  int64_t step() const { return step_; }
  int64_t micro_batches() const { return micro_batches_; }

  /// Of the micro-batch at `position` of the step, i32:
  View values(int64_t position) const { return part(position, 0, StepValues::kCount); }
  void set_values(int64_t position, const StepValues& values);
  View samples(int64_t position, int64_t count) const;
  View labels(int64_t position, int64_t count) const;
  /// What the tail of the gradients is when the step begins (kTailElements, f32): no losses, and the vote.
  View tail() const;

 private:
  /// Words of the entry of a micro-batch of this step: the values, the tail, the samples, the labels.
  View part(int64_t position, int64_t begin, int64_t count) const;

  int64_t micro_batches_, most_samples_, words_;
  HostBuffer memory_;
  int64_t step_ = 0;
};

}  // namespace vitrine
