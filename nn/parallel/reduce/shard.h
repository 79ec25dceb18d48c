// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/optimizer.h"
#include "nn/parallel/reduce/buckets.h"
#include "nn/parallel/reduce/reducer.h"

/// Private to nn/parallel.
namespace vitrine {

/// Elements [begin, end) of the trained parameters, which a replica updates. Its optimizer states and averages have
/// them at `at`.
struct ShardPiece {
  int64_t begin = 0, end = 0;
  int64_t at = 0;
  UpdateRanges ranges = nullptr;  // from 0 to size(); null without parameter groups
  bool shared = true;             // all replicas that update have it

  int64_t size() const { return end - begin; }
  View of_parameters(const View& flat) const { return flat ? flat.rows(begin, end) : View(); }
  View of_states(const View& flat) const { return flat ? flat.rows(at, at + size()) : View(); }
};
/// The pieces follow one another in the parameters and in the states.
using Shard = std::vector<ShardPiece>;

/// How a bucket is divided among ranks: rank r owns elements [begin + r * size, begin + (r + 1) * size). All ranks own
/// the rest, [rest, parameters_end), which is too small to divide, or without Scheme::shard the whole bucket.
struct BucketShards {
  BucketShards(const Bucket& bucket, const ReducerContext& replica);

  int64_t begin, size, rest;

  View all(const View& flat) const { return flat.rows(begin, rest); }
  View of(int rank, const View& flat) const { return flat.rows(begin + rank * size, begin + (rank + 1) * size); }
};

/// A bucket, and where a replica's shard has its part of it and what all own.
struct ShardedBucket {
  Bucket bucket;  // spans that have not been taken point to its name
  BucketShards shards;
  int64_t own_at = 0, rest_at = 0;

  int64_t elements() const { return bucket.parameters_end - bucket.begin; }
  View own_of(const View& shard) const { return shard.rows(own_at, own_at + shards.size); }
  View rest_of(const View& shard) const { return shard.rows(rest_at, rest_at + bucket.parameters_end - shards.rest); }
};
/// All buckets of a replica that is one of several.
std::vector<ShardedBucket> make_sharded_buckets(const ReducerContext& replica);

/// What a replica updates if it updates anything: its shards of all buckets; or without Scheme::shard all parameters,
/// in one piece, or with EngineConfig::update_in_backward in a piece for each bucket.
///   ranges  for all trained parameters, or null
Shard make_shard(const ReducerContext& replica, const UpdateRanges& ranges);

/// The elements of a replica's states.
inline int64_t elements_of(const Shard& shard) { return shard.empty() ? 0 : shard.back().at + shard.back().size(); }

}  // namespace vitrine
