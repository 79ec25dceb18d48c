// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "nn/parallel/reduce/buckets.h"
#include "nn/parallel/reduce/reducer.h"

/// Private to nn/parallel.
namespace vitrine {

/// Each replica updates its shard of every bucket (make_shard()). Gradients are reduced to their owners while backward
/// runs; the owners' squares are gathered, so that all replicas decide alike; updated parameters are all-gathered. A
/// bucket moves the bytes of its all-reduce.   source  Rajbhandari et al., "ZeRO", SC 2020, stage 1
class ShardedReducer final : public Reducer {
 public:
  /// Allocates the sums of squares (Category::communication) where steps are checked. throws OutOfMemory.
  explicit ShardedReducer(const ReducerContext& replica);

  void begin_step(int64_t step) override;
  void add(int64_t finished_elements) override;
  void finish() override;
  void distribute() override;
  void reset() override;
  SquaredElements squared() const override {
    return tiles_ > 0 ? SquaredElements{replica_.layout.parameter_elements(), squares_.view().rows(0, tiles_)}
                      : SquaredElements{};
  }

 private:
  void reduce(const Bucket& bucket);
  void square(const Bucket& bucket);
  void share_decisions();

  const ReducerContext& replica_;
  const std::vector<Bucket> buckets_;  // spans that have not been taken point to their names
  Tensor squares_;                     // (tiles, 2) i32 of all buckets; empty where nothing is checked
  int64_t tiles_ = 0;                  // of the buckets that have been squared
  size_t next_ = 0;                    // the first bucket of the step that has not been reduced
  std::unique_ptr<Event> ready_;       // compute: the gradients of a bucket are final
  std::unique_ptr<Event> reduced_;     // communication: all buckets are reduced
  std::unique_ptr<Event> updated_;     // compute: this replica's shard is updated
  std::unique_ptr<Event> gathered_;    // communication: all shards are there
};

}  // namespace vitrine
