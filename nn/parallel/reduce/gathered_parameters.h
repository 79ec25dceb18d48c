// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "nn/parallel/reduce/shard.h"

/// Private to nn/parallel.
namespace vitrine {

/// Scheme::shard: brings the parameters to the parts of the model that read them. Each bucket is all-gathered from the
/// replicas' shards before the first part that reads it, while the parts before that one are computed. Buckets are
/// gathered in the order in which a pass needs them, so all replicas must make the same calls.
///
/// Sharding::parameters: a bucket has memory of its own, which is freed after the last part that reads it. Otherwise
/// the replica holds all parameters that layers see, and those that others have updated are gathered once, by the first
/// forward pass after the update, or by finish().
///   source  Rajbhandari et al., "ZeRO", SC 2020
class GatheredParameters {
 public:
  ///   all    parameters of the model
  ///   views  one for each parameter. Views of trained parameters are set when they are gathered and emptied when freed
  GatheredParameters(const ReducerContext& replica, const FlatLayout& all, std::vector<View>& views);
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

  enum class Direction { forward, backward };
  /// A pass begins. A backward pass takes over what the forward pass has not freed. Returns whether the pass gathers.
  bool begin_pass(Direction direction);
  /// Work that is queued on the compute stream from now on reads parameters [first, end). Starts to gather the next
  /// bucket too, if both together take at most two buckets of EngineConfig::bucket_bytes, or need no memory.
  void begin_use(int first, int end);
  /// Frees the buckets that the pass needs no more. The last ones of a forward pass stay.
  void end_use(int first, int end);
  /// Frees all.
  void release();

  /// Where the replica holds all parameters: updates begin, after which other shards are stale.
  void begin_updates();
  void set_stale(bool stale);
  bool is_stale() const { return stale_; }
  /// Gathers what is stale: work that is queued on the compute stream from now on sees all updates.
  void finish();
  /// Makes the events, as Reducer::reset(). After a failure parameters are stale, unless all were there.
  void reset();

 private:
  struct Unit : ShardedBucket {
    std::vector<int> parameters = {};      // ascending
    bool stays_f32 = false;                // one of them, beside a 16-bit copy
    Tensor memory = {}, masters = {};      // masters: f32, for parameters that stay f32 beside a 16-bit copy
    Tensor staged = {};                    // (world size * n) f32: parameters that stay f32, of each replica's shard
    bool stale = false;                    // others have updated it
    bool waits = false;                    // the compute stream does not wait for it yet
    std::unique_ptr<Event> gathered = {};  // communication
  };
  bool frees() const { return replica_.shards_parameters(); }
  const View& shard() const { return replica_.half_parameters ? replica_.half_parameters : replica_.parameters; }
  int64_t bytes_of(const Unit& unit) const {
    return unit.elements() * (size_of(shard().dtype) + (unit.stays_f32 ? size_of(DType::f32) : 0));
  }
  void gather(Unit& unit);
  void gather(const Unit& unit, const View& from, const Tensor& to);
  void gather_in_place(Unit& unit);
  /// What layers see in f32 beside a 16-bit copy.
  void gather_staying_f32(const Unit& unit);
  void stage_staying_f32(Unit& unit);
  /// Calls use(parameter, begin, end) for those of its elements that are in [first, first + size).
  template <class Use>
  void for_each_staying_f32(const Unit& unit, int64_t first, int64_t size, const Use& use) const;
  void wait(Unit& unit);
  void release(Unit& unit);
  /// In the order of the compute stream.
  void set_complete(bool complete);

  const ReducerContext& replica_;
  const FlatLayout& layout_;  // of all parameters
  std::vector<View>& views_;
  std::vector<Unit> units_;       // of all buckets
  std::unique_ptr<Event> ready_;  // compute: shards are updated, and memory is free
  Direction direction_ = Direction::forward;
  bool stale_ = false;
  bool complete_ = true;  // no update has begun since all were gathered; GPUs do not tell
};

}  // namespace vitrine
