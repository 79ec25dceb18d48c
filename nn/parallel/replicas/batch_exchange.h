// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/reduce/overlap.h"
#include "nn/parallel/reduce/reducer.h"

/// Private to nn/parallel.
namespace vitrine {

/// What replicas exchange because of layers with buffers: sums over a micro-batch, and buffers that replicas computed
/// alone. Collectives run on the communication stream, between two events, in the order in which all replicas issue
/// their layers; buckets of gradients share that stream, and come in the same order on all replicas too.
class BatchExchange final : public BatchSum {
 public:
  explicit BatchExchange(const ReducerContext& replica) : replica_(replica), overlap_(replica.device) {}

  /// requires ctx is the compute context
  void sum(ExecContext& ctx, const View& values) override;
  /// `values` become those of rank 0, for work that is queued on the compute stream afterwards.
  void broadcast(const View& values);
  /// Makes the events: before the first use and after a failure, while all streams are idle.
  void reset() { overlap_.reset(); }

 private:
  const ReducerContext& replica_;
  Overlap overlap_;
};

}  // namespace vitrine
