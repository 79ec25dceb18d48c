// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "nn/parallel/reduce/gradient_squares.h"
#include "nn/parallel/reduce/overlap.h"
#include "nn/parallel/reduce/shard.h"
#include "nn/parallel/reduce/wire_gradients.h"

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
