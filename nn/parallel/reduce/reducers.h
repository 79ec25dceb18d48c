// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "nn/parallel/reduce/gradient_squares.h"
#include "nn/parallel/reduce/overlap.h"
#include "nn/parallel/reduce/reducer.h"
#include "nn/parallel/reduce/shard.h"
#include "nn/parallel/reduce/wire_gradients.h"

/// Private to nn/parallel.
namespace vitrine {

/// Exact mode with sharded gradients: what differs in ShardedReducer. A bucket's memory has a row for each node of the
/// tree over leaves that the replica computes in the micro-batch.
class BucketNodes {
 public:
  virtual ~BucketNodes() = default;
  /// Nodes of the micro-batch; without samples 0.
  virtual int count() const = 0;
  /// Queues the reduction to the owners on the communication stream.
  ///   memory  (count() * bucket.elements()); empty without nodes
  virtual void reduce(const ShardedBucket& bucket, const View& memory) = 0;
};

/// Each replica updates its shard of every bucket (make_shard()). Gradients are reduced to their owners while backward
/// runs; the owners' squares are gathered, so that all replicas decide alike; updated parameters are left to
/// GatheredParameters. A bucket moves the bytes of its all-reduce.
///   source  Rajbhandari et al., "ZeRO", SC 2020
///
/// Where gradients are sharded (stages 2 and 3) a bucket has memory from when backward begins it until the next bucket
/// is reduced, or, if both together are larger than two buckets of EngineConfig::bucket_bytes, until the next one
/// begins. Each micro-batch is reduced and added to the owner's shard.
///
/// With EngineConfig::update_in_backward buckets have such memory under every scheme, and the update runs before it is
/// freed. Without Scheme::shard a bucket is all-reduced, and every replica updates all of it; a replica that is alone
/// updates it as soon as backward has finished it.
class ShardedReducer final : public Reducer {
 public:
  /// Allocates the sums of squares (Category::communication) where steps are checked. throws OutOfMemory.
  ///   nodes  null, or those of exact mode with sharded gradients
  explicit ShardedReducer(const ReducerContext& replica, BucketNodes* nodes = nullptr);

  void begin_step(int64_t step) override;
  void begin_backward(bool first, bool last) override;
  void begin_gradients(int64_t elements, const FlatLayout& all, std::vector<View>& views) override;
  void add(int64_t finished_elements) override;
  void finish() override;
  void distribute() override;
  void reset() override;
  /// Where the values of node `number` lie that belong to a view which begin_gradients() has set.
  View in_node(const View& gradient, int number) const;
  SquaredElements squared() const override {
    return tiles_ > 0 ? SquaredElements{replica_.gradient_elements(), squares_.view().rows(0, tiles_)}
                      : SquaredElements{};
  }

 private:
  /// A bucket; where its gradients are, while backward writes them; and where the reduced ones are: in the flat
  /// gradients, or with update_in_backward in `memory`.
  struct Part : ShardedBucket {
    std::string label = {};  // of its spans, which point to it
    Tensor memory = {};      // ReducerContext::has_gradient_buckets(): of the bucket without the tail
  };
  bool alone() const { return replica_.world_size == 1; }
  bool updates_in_backward() const { return replica_.config.update_in_backward; }
  View reduced(const Part& part) const { return updates_in_backward() ? part.memory.view() : replica_.gradients; }
  View own(const Part& part) const { return part.own_of(reduced(part)); }
  View shared(const Part& part) const { return part.shared_of(reduced(part)); }
  int nodes() const { return nodes_ != nullptr ? nodes_->count() : 1; }
  int64_t bytes_of(const Part& part) const { return nodes() * part.elements() * size_of(DType::f32); }
  void allocate(Part& part);
  void reduce(Part& part);
  /// Reduces from the bucket's own memory.
  void reduce_shards(Part& part);
  void square(const Part& part);
  /// Frees the memory of the bucket before `next_`, once it is reduced.
  void release();
  /// Frees the memory of a reduced bucket, with update_in_backward after its update.
  void free(Part& part);
  void share_decisions(ExecContext& communication);

  const ReducerContext& replica_;
  BucketNodes* const nodes_;
  std::vector<Part> parts_;          // of all buckets
  Tensor squares_;                   // (tiles, 2) i32 of all buckets; empty where nothing is checked
  int64_t tiles_ = 0;                // of the buckets that have been squared
  size_t next_ = 0;                  // the first bucket of the step, or micro-batch, that has not been reduced
  bool first_ = true, last_ = true;  // the micro-batch is the first, or the last, of the step
  Overlap reduction_, decisions_;
};

}  // namespace vitrine

/// Private to nn/parallel.
namespace vitrine {

/// Every replica gets the sums and updates all parameters. Gradients are all-reduced in buckets, each as soon as
/// backward has finished it, so that communication overlaps with the rest of backward. A replica that is alone has
/// nothing to sum; on a GPU it squares its gradients instead, bucket by bucket (GradientSquares).   source  Li et al.,
/// "PyTorch Distributed", VLDB 2020
class AllReduceReducer final : public Reducer {
 public:
  explicit AllReduceReducer(const ReducerContext& replica);

  void begin_step(int64_t step) override;
  void add(int64_t finished_elements) override;
  void finish() override;
  void reset() override { overlap_.reset(); }
  SquaredElements squared() const override { return squares_.squared(); }
  View error() const override { return wire_.error(); }

 private:
  bool alone() const { return replica_.world_size == 1; }
  void reduce(const Bucket& bucket);

  const ReducerContext& replica_;
  WireGradients wire_;
  GradientSquares squares_;
  Overlap overlap_;
  const std::vector<Bucket> buckets_;  // spans that have not been taken point to their names
  size_t next_ = 0;                    // the first bucket of the step that has not been reduced
};

}  // namespace vitrine

/// Private to nn/parallel.
namespace vitrine {

/// Device 0 gets the sums after backward, updates all parameters and broadcasts them, as torch.nn.DataParallel does.
class Gpu0Reducer final : public Reducer {
 public:
  explicit Gpu0Reducer(const ReducerContext& replica);

  bool updates() const override { return is_root(); }
  void begin_step(int64_t step) override { wire_.begin_step(step); }
  void add(int64_t) override {}  // all gradients are summed at once
  void finish() override;
  void distribute() override;
  void reset() override;
  View error() const override { return wire_.error(); }

 private:
  bool is_root() const { return replica_.rank == 0; }

  const ReducerContext& replica_;
  WireGradients wire_;
  Overlap reduction_, broadcast_;
};

}  // namespace vitrine
