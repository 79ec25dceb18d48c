// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "nn/parallel/reduce/reducer.h"
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

}  // namespace vitrine
