// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "nn/parallel/leaf_plan.h"
#include "nn/parallel/reduce/overlap.h"
#include "nn/parallel/reduce/reducers.h"
#include "nn/parallel/reduce/shard.h"

/// Private to nn/parallel.
namespace vitrine {

/// Exact mode: the squares of the reduced gradient, summed by tiles of all trained parameters, so that the norm has the
/// same bits wherever the gradient lies. With sharded gradients an owner squares the tiles that it has as a whole.
/// Tiles that shards cut are first put together on every device.
class ExactSquares {
 public:
  /// Allocates the sums on replicas that check steps. throws OutOfMemory.
  explicit ExactSquares(const ReducerContext& replica);

  /// Queues the sums on the compute stream.
  ///   all_reduce  queues the sum of a view over all replicas, between the work of the compute stream before and after
  void sum(const std::function<void(const View&)>& all_reduce) const;
  SquaredElements squared() const {
    return sums_ ? SquaredElements{replica_.gradient_elements(), sums_} : SquaredElements{};
  }

 private:
  void square(ExecContext& ctx, const View& values, int64_t first_tile) const;
  void sum_shards(const std::function<void(const View&)>& all_reduce) const;

  const ReducerContext& replica_;
  std::vector<ShardPiece> pieces_;  // of the sharded gradient, which no other replica contributes
  std::vector<int64_t> cut_;        // tiles that lie in no piece of any replica
  Tensor sums_;                     // (tiles, 2) i32; empty where nothing is checked
};

/// Exact mode: the sum over the leaves of the step, added along the tree over their numbers, so that it has the same
/// bits on any devices. A device adds its own leaves up to the largest nodes that it can complete, layer by layer
/// during backward; nodes whose siblings are elsewhere or come later are kept as whole gradients. Between devices only
/// nodes travel, bucket by bucket, to the owner of a part of the bucket; it adds them along the rest of the tree. The
/// norm is measured afterwards, in an order that depends only on the number of elements.
///
/// With sharded gradients nodes lie in the buckets of ShardedReducer, and travel after each micro-batch. An owner keeps
/// what it cannot add yet.
class ExactReducer final : public Reducer, public LeafSums, private BucketNodes {
 public:
  /// Allocates the nodes that do not lie in the gradients (Category::gradients).
  ///   plans  for the training batches, by samples; must outlive the reducer
  ExactReducer(const ReducerContext& replica, const std::map<int64_t, LeafPlan>& plans);

  /// Before begin_step(): the number of samples of the global batch.
  void begin_batch(int64_t samples);
  /// leaves  of the micro-batch on this device, at one address until the next one
  void begin_micro_batch(int index, const Leaves& leaves);
  /// The totals of one leaf's loss, zero at the start of the step.
  View totals_of(int leaf) const { return totals_.view().rows(leaf, leaf + 1).reshape({totals_.shape()[1]}); }

  /// Those of all leaves, on every device after finish().
  View leaf_totals() const { return totals_.view().reshape({totals_.numel()}); }

  void sum_groups(ExecContext& ctx, const View& by_leaf, const View& sums) override;
  void add_gradient(ExecContext& ctx, const View& by_leaf, const View& grad) override;

  void begin_backward(bool first, bool last) override;
  void begin_gradients(int64_t elements, const FlatLayout& all, std::vector<View>& views) override;
  void add(int64_t finished_elements) override;
  void finish() override;
  bool updates() const override { return updating_ == nullptr || updating_->updates(); }
  void begin_step(int64_t step) override;
  void distribute() override;
  void reset() override;
  SquaredElements squared() const override { return squares_.squared(); }

 private:
  bool alone() const { return replica_.world_size == 1; }
  View buffer(int index) const;
  void reduce(const Bucket& bucket);
  int count() const override { return static_cast<int>(plan_->nodes_after(replica_.rank, micro_batch_).size()); }
  void reduce(const ShardedBucket& bucket, const View& memory) override;
  /// Reduces one node of the micro-batch to the owners.
  ///   sum  what this replica owns of the bucket
  void reduce(const ShardedBucket& bucket, const View& memory, const Subtree& node, const View& sum);
  void sum_totals();
  /// Runs a collective on the communication stream, between what is queued on the compute stream before and after.
  template <class Collective>
  void reduce_now(const char* name, const Collective& collective);

  const ReducerContext& replica_;
  const std::map<int64_t, LeafPlan>& plans_;
  const std::vector<Bucket> buckets_;  // spans that have not been taken point to their names
  Tensor nodes_;                       // (buffers - 1, elements) f32; the first buffer is the gradients
  Tensor totals_;                      // (leaves, LossTotals::kCount) f32
  const ExactSquares squares_;
  std::unique_ptr<Reducer> updating_;  // its distribute(), where not every replica updates all; else null
  ShardedReducer* sharded_ = nullptr;  // the same, where it has the buckets of sharded gradients
  const LeafPlan* plan_ = nullptr;     // of the step
  int micro_batch_ = 0;
  const Leaves* leaves_ = nullptr;  // of the micro-batch
  size_t next_ = 0;                 // the first bucket of the step that has not been reduced
  Overlap overlap_;
};

}  // namespace vitrine
