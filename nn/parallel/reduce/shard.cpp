// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/shard.h"

#include <algorithm>
#include <utility>

namespace vitrine {
namespace {

/// The part of `ranges` in [begin, end), from 0.
UpdateRanges cut(const UpdateRanges& ranges, int64_t begin, int64_t end) {
  if (ranges == nullptr) return nullptr;
  std::vector<UpdateRange> parts;
  for (UpdateRange range : *ranges) {
    range.begin = std::max(range.begin, begin) - begin;
    range.end = std::min(range.end, end) - begin;
    if (range.begin < range.end) parts.push_back(range);
  }
  return std::make_shared<const std::vector<UpdateRange>>(std::move(parts));
}

}  // namespace

BucketShards::BucketShards(const Bucket& bucket, const ReducerContext& replica) : begin(bucket.begin) {
  const int64_t step = FlatLayout::kAlignmentElements;  // shards are aligned as parameters are
  size = replica.shards_states() ? (bucket.parameters_end - bucket.begin) / replica.world_size / step * step : 0;
  rest = begin + size * replica.world_size;
}

std::vector<ShardedBucket> make_sharded_buckets(const ReducerContext& replica) {
  std::vector<ShardedBucket> buckets;
  int64_t at = 0;
  for (Bucket& bucket : make_buckets(replica.layout, replica.config.first_bucket_bytes, replica.config.bucket_bytes)) {
    const BucketShards shards(bucket, replica);
    const int64_t own_at = std::exchange(at, at + shards.size + bucket.parameters_end - shards.rest);
    buckets.push_back({std::move(bucket), shards, own_at, own_at + shards.size});
  }
  return buckets;
}

Shard make_shard(const ReducerContext& replica, const UpdateRanges& ranges) {
  Shard shard;
  const auto add = [&](int64_t begin, int64_t end, bool shared = true) {
    if (begin < end) shard.push_back({begin, end, elements_of(shard), cut(ranges, begin, end), shared});
  };
  if (!replica.shards_states() && !replica.config.update_in_backward) {
    add(0, replica.layout.parameter_elements());
    return shard;
  }
  for (const auto& [bucket, shards, own_at, rest_at] : make_sharded_buckets(replica)) {
    const int64_t own = shards.begin + replica.rank * shards.size;
    add(own, own + shards.size, false);
    add(shards.rest, bucket.parameters_end);
  }
  return shard;
}

}  // namespace vitrine
