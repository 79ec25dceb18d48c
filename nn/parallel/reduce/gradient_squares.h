// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/reduce/reducer.h"
#include "nn/parallel/reduce/shard.h"

/// Private to nn/parallel.
namespace vitrine {

/// Sums the squares of gradients as soon as they are final, on the communication stream while backward goes on, so that
/// decide_step() need not read them again:
///   * Where CPU devices of one process sum a bucket, the all-reduce squares what it has in the cache.
///   * Else sum_squares() follows a bucket's all-reduce. A single GPU has nothing to reduce, and squares each bucket
///     when backward has finished it.
///   * On a single CPU device decide_step() squares them: backward and a second stream would share its cores.
/// What is below kLeastElements, and what is final only at the end of backward, is left to decide_step(): small models
/// are checked there alone.
class GradientSquares {
 public:
  static constexpr int64_t kLeastElements = int64_t{1} << 20;

  /// Allocates the sums (Category::communication, of a single GPU Category::gradients) where gradients are squared
  /// here. throws OutOfMemory.
  explicit GradientSquares(const ReducerContext& replica);

  void begin_step() { elements_ = tiles_ = 0; }
  bool active() const { return static_cast<bool>(sums_); }
  /// Queues the all-reduce of a bucket that follows those before, and squares it. Returns false, without work, where
  /// that takes a separate pass.
  bool all_reduce(const Bucket& bucket);
  /// Whether add(finished_elements) would square anything.
  bool has_work(int64_t finished_elements) const;
  /// The gradients of [0, finished_elements) are final on the communication stream: queues a pass over them if that
  /// has_work().
  void add(int64_t finished_elements);
  SquaredElements squared() const {
    return elements_ > 0 ? SquaredElements{elements_, sums_.view().rows(0, tiles_)} : SquaredElements{};
  }

 private:
  /// The rows for the tiles of [elements_, end), which become squared.
  View take(int64_t end);

  const ReducerContext& replica_;
  Tensor sums_;  // (tiles, 2) i32; empty where nothing is squared here
  int64_t elements_ = 0, tiles_ = 0;
};

}  // namespace vitrine
