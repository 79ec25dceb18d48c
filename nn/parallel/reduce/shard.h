// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "nn/parallel/reduce/reducer.h"

/// Private to nn/parallel.
namespace vitrine {

/// A contiguous range of the flat gradients. Buckets follow each other in the order in which backward finishes them;
/// the last one includes the tail.
struct Bucket {
  int64_t begin = 0, end = 0;  // elements
  int64_t parameters_end = 0;  // the end without the tail: the bucket is final when these elements are
  std::string name;            // "bucket 0", ...: its label in traces
};

/// Elements from the start of the flat gradients that are final once those of `parameter` (an index in `layout`, which
/// may have frozen parameters) and all later ones are: gradients lie in reverse order.
int64_t finished_elements(const FlatLayout& layout, int parameter);

/// Cuts the gradients at parameter boundaries into buckets of at most bucket_bytes (a larger parameter makes a larger
/// bucket), the first of at most first_bucket_bytes: it can start earliest.   source  Li et al., "PyTorch Distributed",
/// VLDB 2020
std::vector<Bucket> make_buckets(const FlatLayout& layout, int64_t first_bucket_bytes, int64_t bucket_bytes);

/// Elements [begin, end) of the trained parameters, which a replica updates. Its optimizer states and averages have
/// them from `state_begin` on.
struct ShardPiece {
  int64_t begin = 0, end = 0;
  int64_t state_begin = 0;
  UpdateRanges ranges = nullptr;  // from 0 to size(); null without parameter groups
  bool shared = true;             // all replicas that update have it

  int64_t size() const { return end - begin; }
  View of_parameters(const View& flat) const { return flat ? flat.rows(begin, end) : View(); }
  View of_states(const View& flat) const { return flat ? flat.rows(state_begin, state_begin + size()) : View(); }
};
/// The pieces follow one another in the parameters and in the states.
using Shard = std::vector<ShardPiece>;

/// How a bucket is divided among ranks: rank r owns elements [begin + r * size, begin + (r + 1) * size). All ranks own
/// the rest, [shared_begin, parameters_end), which is too small to divide, or without Scheme::shard the whole bucket.
struct BucketShards {
  BucketShards(const Bucket& bucket, const ReducerContext& replica);

  int64_t begin, size, shared_begin;

  View all(const View& flat) const { return flat.rows(begin, shared_begin); }
  View owned_by(int rank, const View& flat) const { return flat.rows(begin + rank * size, begin + (rank + 1) * size); }
};

/// A bucket, and where a replica's shard has its part of it and what all own.
struct ShardedBucket {
  Bucket bucket;  // spans that have not been taken point to its name
  BucketShards shards;
  int64_t own_in_shard = 0, shared_in_shard = 0;

  int64_t elements() const { return bucket.parameters_end - bucket.begin; }
  View own_of(const View& shard) const { return shard.rows(own_in_shard, own_in_shard + shards.size); }
  View shared_of(const View& shard) const {
    return shard.rows(shared_in_shard, shared_in_shard + bucket.parameters_end - shards.shared_begin);
  }
};
/// All buckets of a replica that is one of several.
std::vector<ShardedBucket> make_sharded_buckets(const ReducerContext& replica);

/// What a replica updates if it updates anything: its shards of all buckets; or without Scheme::shard all parameters,
/// in one piece, or with EngineConfig::update_in_backward in a piece for each bucket.
///   ranges  for all trained parameters, or null
Shard make_shard(const ReducerContext& replica, const UpdateRanges& ranges);

/// The elements of a replica's states.
inline int64_t elements_of(const Shard& shard) {
  return shard.empty() ? 0 : shard.back().state_begin + shard.back().size();
}

}  // namespace vitrine
