// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/sharded_reducer.h"

#include "kernels/cast.h"
#include "nn/parallel/reduce/shard.h"
#include "runtime/square_sums.h"

namespace vitrine {
namespace {

/// Rows of an i32 view for the squares of a bucket: first those of each rank's shard, then those of the rest.
int64_t tiles_of(const Bucket& bucket, const BucketShards& shards, int ranks) {
  return square_tiles(shards.size) * ranks + square_tiles(bucket.parameters_end - shards.rest);
}

}  // namespace

ShardedReducer::ShardedReducer(const ReducerContext& replica)
    : replica_(replica),
      buckets_(make_buckets(replica.layout, replica.config.first_bucket_bytes, replica.config.bucket_bytes)) {
  const EngineConfig& config = replica.config;
  const bool checks = config.non_finite() != NonFinite::accept || config.precision.loss_scaling.active();
  if (!checks || config.exact()) return;  // exact mode sums squares in its own order
  int64_t tiles = 0;
  for (const Bucket& bucket : buckets_)
    tiles += tiles_of(bucket, BucketShards(bucket, replica.world_size), replica.world_size);
  squares_ = replica.device.compute().allocate({tiles, 2}, DType::i32, Category::communication, "sums of squares");
}

void ShardedReducer::reset() {
  for (auto* event : {&ready_, &reduced_, &updated_, &gathered_})
    *event = replica_.device.compute().stream().make_event();
}

void ShardedReducer::begin_step(int64_t) {
  next_ = 0;
  tiles_ = 0;
}

void ShardedReducer::add(int64_t finished_elements) {
  while (next_ < buckets_.size() && buckets_[next_].parameters_end <= finished_elements) reduce(buckets_[next_++]);
}

void ShardedReducer::reduce(const Bucket& bucket) {
  ExecContext& communication = replica_.device.communication();
  const BucketShards shards(bucket, replica_.world_size);
  replica_.device.compute().record(*ready_);
  const PhaseScope phase(communication, Phase::reduce, bucket.name.c_str());
  communication.wait(*ready_, "backward");
  if (shards.size > 0) {
    replica_.communicator->reduce_scatter(communication, shards.all(replica_.gradients),
                                          shards.of(replica_.rank, replica_.gradients));
  }
  if (shards.rest < bucket.end)
    replica_.communicator->all_reduce(communication, replica_.gradients.rows(shards.rest, bucket.end));
  if (squares_) square(bucket);
}

void ShardedReducer::square(const Bucket& bucket) {
  ExecContext& communication = replica_.device.communication();
  const int ranks = replica_.world_size;
  const BucketShards shards(bucket, ranks);
  const int64_t each = square_tiles(shards.size), all = each * ranks;
  const View squares = squares_.view().rows(tiles_, tiles_ + tiles_of(bucket, shards, ranks));
  tiles_ += squares.shape[0];
  if (each > 0) {
    const View own = squares.rows(replica_.rank * each, (replica_.rank + 1) * each);
    sum_squares(communication, shards.of(replica_.rank, replica_.gradients), own);
    replica_.communicator->all_gather(communication, own, squares.rows(0, all));
  }
  if (all < squares.shape[0]) {
    sum_squares(communication, replica_.gradients.rows(shards.rest, bucket.parameters_end),
                squares.rows(all, squares.shape[0]));
  }
}

void ShardedReducer::finish() {
  add(replica_.layout.parameter_elements());
  replica_.device.communication().record(*reduced_);
  replica_.device.compute().wait(*reduced_, "reduce");
}

void ShardedReducer::share_decisions() {
  // The update of one shard may have stopped training, and only an element's owner may know that it is not finite.
  const auto control = [&](int64_t index) { return replica_.control.rows(index, index + 1); };
  View first = control(StepControl::kFirstNonFinite);
  first.dtype = DType::i32;
  replica_.communicator->all_reduce(replica_.device.communication(), first, first, ReduceOp::min);
  const View stopped = control(StepControl::kStopped);
  replica_.communicator->all_reduce(replica_.device.communication(), stopped, stopped, ReduceOp::max);
}

void ShardedReducer::distribute() {
  ExecContext& compute = replica_.device.compute();
  ExecContext& communication = replica_.device.communication();
  compute.record(*updated_);
  {
    const PhaseScope phase(communication, Phase::broadcast, "parameters");
    communication.wait(*updated_, "optimizer");
    for (const Bucket& bucket : buckets_) {
      const BucketShards shards(bucket, replica_.world_size);
      if (shards.size == 0) continue;
      replica_.communicator->all_gather(communication, shards.of(replica_.rank, replica_.parameters),
                                        shards.all(replica_.parameters));
    }
    if (replica_.control) share_decisions();  // empty before the first update
  }
  communication.record(*gathered_);
  {
    const PhaseScope phase(compute, Phase::broadcast);
    compute.wait(*gathered_, "broadcast");
  }
  if (!replica_.half_parameters) return;
  const PhaseScope phase(compute, Phase::cast);
  cast(compute, replica_.parameters, replica_.half_parameters);
}

}  // namespace vitrine
