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

int64_t finished_elements(const FlatLayout& layout, int parameter) {
  while (parameter > 0 && !layout.specs()[static_cast<size_t>(parameter) - 1].trained) --parameter;
  return parameter > 0 ? layout.offset(parameter - 1) : layout.trained_elements();
}

std::vector<Bucket> make_buckets(const FlatLayout& layout, int64_t first_bucket_bytes, int64_t bucket_bytes) {
  std::vector<Bucket> buckets(1);
  for (int i = layout.size(); i-- > 0;) {
    const int64_t begin = layout.offset(i), end = finished_elements(layout, i);
    const int64_t limit = (buckets.size() == 1 ? first_bucket_bytes : bucket_bytes) / size_of(DType::f32);
    // A bucket ends before the parameter that would make it too large.
    if (begin > buckets.back().begin && end - buckets.back().begin > limit)
      buckets.push_back({begin, begin, begin, {}});
    buckets.back().end = buckets.back().parameters_end = end;
  }
  buckets.back().end = layout.total_elements();
  for (size_t i = 0; i < buckets.size(); ++i) buckets[i].name = "bucket " + std::to_string(i);
  return buckets;
}

BucketShards::BucketShards(const Bucket& bucket, const ReducerContext& replica) : begin(bucket.begin) {
  const int64_t step = FlatLayout::kAlignmentElements;  // shards are aligned as parameters are
  size = replica.shards_states() ? (bucket.parameters_end - bucket.begin) / replica.world_size / step * step : 0;
  shared_begin = begin + size * replica.world_size;
}

std::vector<ShardedBucket> make_sharded_buckets(const ReducerContext& replica) {
  std::vector<ShardedBucket> buckets;
  int64_t at = 0;
  for (Bucket& bucket : make_buckets(replica.layout, replica.config.first_bucket_bytes, replica.config.bucket_bytes)) {
    const BucketShards shards(bucket, replica);
    const int64_t own_in_shard = std::exchange(at, at + shards.size + bucket.parameters_end - shards.shared_begin);
    buckets.push_back({std::move(bucket), shards, own_in_shard, own_in_shard + shards.size});
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
  for (const auto& [bucket, shards, own_in_shard, shared_in_shard] : make_sharded_buckets(replica)) {
    const int64_t own = shards.begin + replica.rank * shards.size;
    add(own, own + shards.size, false);
    add(shards.shared_begin, bucket.parameters_end);
  }
  return shard;
}

}  // namespace vitrine
