// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "nn/parallel/reduce/shard.h"

/// Private to nn/parallel.
namespace vitrine {

/// Sharding::parameters: what layers see of the parameters, in memory that lives as long as they need it. Each bucket
/// is all-gathered from the replicas' shards before the first part of the model that reads it, and freed after the
/// last one. Buckets are gathered in the order in which a pass needs them, so all replicas must make the same calls.
///   source  Rajbhandari et al., "ZeRO", SC 2020, stage 3
class GatheredParameters {
 public:
  ///   all    parameters of the model
  ///   views  one for each parameter. Views of trained parameters are set when they are gathered and emptied when freed
  GatheredParameters(const ReducerContext& replica, const FlatLayout& all, std::vector<View>& views);
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

  enum class Direction { forward, backward };
  /// A pass begins. A backward pass takes over what the forward pass has not freed.
  void begin_pass(Direction direction) { direction_ = direction; }
  /// Work that is queued on the compute stream from now on reads parameters [first, end). Starts to gather the next
  /// bucket too, if both together take at most two buckets of EngineConfig::bucket_bytes.
  void begin_use(int first, int end);
  /// Frees the buckets that the pass needs no more. The last ones of a forward pass stay.
  void end_use(int first, int end);
  /// Frees all.
  void release();
  /// Makes the events, as Reducer::reset().
  void reset();

 private:
  struct Unit : ShardedBucket {
    std::vector<int> parameters = {};      // ascending
    bool stays_f32 = false;                // one of them, beside a 16-bit copy
    Tensor memory = {}, masters = {};      // masters: f32, for parameters that stay f32 beside a 16-bit copy
    bool waits = false;                    // the compute stream does not wait for it yet
    std::unique_ptr<Event> gathered = {};  // communication
  };
  const View& shard() const { return replica_.half_parameters ? replica_.half_parameters : replica_.parameters; }
  int64_t bytes_of(const Unit& unit) const {
    return unit.elements() * (size_of(shard().dtype) + (unit.stays_f32 ? size_of(DType::f32) : 0));
  }
  void gather(Unit& unit);
  void gather(const Unit& unit, const View& from, const Tensor& to);
  void release(Unit& unit);

  const ReducerContext& replica_;
  const FlatLayout& layout_;  // of all parameters
  std::vector<View>& views_;
  std::vector<Unit> units_;       // of all buckets
  std::unique_ptr<Event> ready_;  // compute: shards are updated, and memory is free
  Direction direction_ = Direction::forward;
};

}  // namespace vitrine
