// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/elementwise.h"
#include "nn/parallel/reduce/reducers.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/square_sums.h"
#include "runtime/trace/communication_table.h"

namespace vitrine {
namespace {

/// Rows of an i32 view for the squares of a bucket: first those of each rank's shard, then those of the rest.
int64_t tiles_of(const Bucket& bucket, const BucketShards& shards, int ranks) {
  return square_tiles(shards.size) * ranks + square_tiles(bucket.parameters_end - shards.shared_begin);
}

}  // namespace

ShardedReducer::ShardedReducer(const ReducerContext& replica, BucketNodes* nodes)
    : replica_(replica), nodes_(nodes), reduction_(replica.device), decisions_(replica.device) {
  const EngineConfig& config = replica.config;
  for (ShardedBucket& bucket : make_sharded_buckets(replica)) {
    Part& part = parts_.emplace_back(Part{std::move(bucket)});
    part.label = (part.shards.size > 0 ? kShardsOf : "") + part.bucket.name;
    if (replica.shards_gradients() && !updates_in_backward()) continue;
    const int64_t begin = updates_in_backward() ? 0 : part.shards.begin;
    part.own_in_shard = begin + replica.rank * part.shards.size;
    part.shared_in_shard = begin + part.shards.shared_begin - part.shards.begin;
  }
  const bool checks = config.non_finite() != NonFinite::accept || config.precision.loss_scaling.active();
  // ExactSquares does it in exact mode; an update before all gradients are there knows no norm.
  if (!checks || config.exact() || updates_in_backward()) return;
  int64_t tiles = 0;
  for (const Part& part : parts_) tiles += tiles_of(part.bucket, part.shards, replica.world_size);
  squares_ = replica.device.compute().allocate({tiles, 2}, DType::i32, Category::communication, "sums of squares");
}

void ShardedReducer::reset() {
  reduction_.reset();
  decisions_.reset();
  for (Part& part : parts_) part.memory = {};
}

void ShardedReducer::begin_step(int64_t) {
  next_ = 0;
  tiles_ = 0;
}

void ShardedReducer::begin_backward(bool first, bool last) {
  next_ = 0;
  first_ = first;
  last_ = last;
  if (!updates_in_backward() || alone()) return;
  reduction_.start(Phase::reduce, "totals", "loss", [this](ExecContext& communication) {
    replica_.communicator->all_reduce(communication, replica_.tail());
  });
  reduction_.join("reduce");
}

void ShardedReducer::begin_gradients(int64_t elements, const FlatLayout& all, std::vector<View>& views) {
  ExecContext& compute = replica_.device.compute();
  for (size_t k = next_; k < parts_.size() && parts_[k].bucket.begin < elements; ++k) {
    Part& part = parts_[k];
    if (part.memory) continue;
    // Large buckets follow one another, so that gradients in flight stay below two buckets or one parameter.
    if (next_ > 0 && parts_[next_ - 1].memory.bytes() + bytes_of(part) > 2 * replica_.config.bucket_bytes) release();
    allocate(part);
    for (int i = 0; i < all.size(); ++i) {
      const int64_t at = all.offset(i) - part.bucket.begin;
      const ParamSpec& spec = all.specs()[static_cast<size_t>(i)];
      if (!spec.trained || at < 0 || at >= part.elements()) continue;
      const int64_t end = at + spec.shape.numel(), step = FlatLayout::kAlignmentElements;
      views[static_cast<size_t>(i)] = part.memory.view().rows(at, end).reshape(spec.shape);
      const int64_t padded = (end + step - 1) / step * step;
      for (int64_t node = 0; node < nodes() && end < padded; ++node)
        zero(compute, part.memory.view().rows(node * part.elements() + end, node * part.elements() + padded));
    }
  }
}

void ShardedReducer::allocate(Part& part) {
  part.memory = replica_.device.compute().allocate({bytes_of(part) / size_of(DType::f32)}, DType::f32,
                                                   Category::gradients, part.bucket.name);
}

View ShardedReducer::in_node(const View& gradient, int number) const {
  const auto offset = [&](const Part& part) {
    return static_cast<const float*>(gradient.data) - static_cast<const float*>(part.memory.view().data);
  };
  const auto part = std::ranges::find_if(
      parts_, [&](const Part& one) { return one.memory && offset(one) >= 0 && offset(one) < one.elements(); });
  VITRINE_ASSERT(part != parts_.end(), "the gradient lies in a bucket that backward has begun");
  const int64_t first = number * part->elements() + offset(*part);
  return part->memory.view().rows(first, first + gradient.numel());
}

void ShardedReducer::release() {
  if (next_ == 0 || !parts_[next_ - 1].memory) return;
  if (!alone()) reduction_.wait("reduce");
  free(parts_[next_ - 1]);
}

void ShardedReducer::free(Part& part) {
  if (updates_in_backward()) {
    const BucketShards& shards = part.shards;
    if (shards.size > 0) replica_.update(shards.begin + replica_.rank * shards.size, own(part));
    if (shards.shared_begin < part.bucket.parameters_end) replica_.update(shards.shared_begin, shared(part));
  }
  part.memory = {};
}

void ShardedReducer::add(int64_t finished_elements) {
  for (; next_ < parts_.size() && parts_[next_].bucket.parameters_end <= finished_elements; ++next_) {
    release();
    reduce(parts_[next_]);
  }
  if (alone() || (next_ == parts_.size() && !last_)) release();
}

void ShardedReducer::reduce(Part& part) {
  if (alone()) return;
  if (replica_.has_gradient_buckets() && !part.memory && nodes() > 0) {  // this replica has no samples
    allocate(part);
    zero(replica_.device.compute(), part.memory);
  }
  reduction_.start(Phase::reduce, part.label.c_str(), "backward", [&](ExecContext& communication) {
    const BucketShards& shards = part.shards;
    if (nodes_ != nullptr) {
      nodes_->reduce(part, part.memory);
      reduction_.mark_done();
    } else if (replica_.has_gradient_buckets()) {
      reduce_shards(part);
    } else {
      if (shards.size > 0)
        replica_.communicator->reduce_scatter(communication, shards.all(replica_.gradients), own(part));
      if (shards.shared_begin < part.bucket.end)
        replica_.communicator->all_reduce(communication, replica_.gradients.rows(shards.shared_begin, part.bucket.end));
    }
    if (squares_ && last_) square(part);
  });
}

void ShardedReducer::reduce_shards(Part& part) {
  ExecContext& communication = replica_.device.communication();
  const View whole = part.memory.view();
  const int64_t size = part.shards.size, divided = size * replica_.world_size;
  // The first micro-batch is reduced to where it stays (for an update in backward, in place), later ones in place.
  const auto reduce_to = [&](const View& target, const View& in_place, const auto& collective) {
    if (target.numel() == 0) return;
    collective(first_ ? target : in_place);
    if (!first_) vitrine::add(communication, target, in_place, target);
  };
  reduce_to(own(part), whole.rows(replica_.rank * size, (replica_.rank + 1) * size), [&](const View& output) {
    replica_.communicator->reduce_scatter(communication, whole.rows(0, divided), output);
  });
  const View others = whole.rows(divided, whole.shape[0]);
  reduce_to(shared(part), others,
            [&](const View& output) { replica_.communicator->all_reduce(communication, others, output); });
  if (last_ && part.bucket.end > part.bucket.parameters_end && !updates_in_backward())
    replica_.communicator->all_reduce(communication, replica_.tail());
  reduction_.mark_done();
}

void ShardedReducer::square(const Part& part) {
  ExecContext& communication = replica_.device.communication();
  const int ranks = replica_.world_size;
  const int64_t each = square_tiles(part.shards.size), all = each * ranks;
  const View squares = squares_.view().rows(tiles_, tiles_ + tiles_of(part.bucket, part.shards, ranks));
  tiles_ += squares.shape[0];
  if (each > 0) {
    const View mine = squares.rows(replica_.rank * each, (replica_.rank + 1) * each);
    sum_squares(communication, own(part), mine);
    replica_.communicator->all_gather(communication, mine, squares.rows(0, all));
  }
  if (all < squares.shape[0]) sum_squares(communication, shared(part), squares.rows(all, squares.shape[0]));
}

void ShardedReducer::finish() {
  add(replica_.layout.parameter_elements());
  if (alone()) return;
  reduction_.join("reduce");
  if (parts_.back().memory) free(parts_.back());
}

void ShardedReducer::share_decisions(ExecContext& communication) {
  // The update of one shard may have stopped training, and only an element's owner may know that it is not finite.
  const auto control = [&](int64_t index) { return replica_.control.rows(index, index + 1); };
  View first = control(StepControl::kFirstNonFinite);
  first.dtype = DType::i32;
  replica_.communicator->all_reduce(communication, first, first, ReduceOp::min);
  const View stopped = control(StepControl::kStopped);
  replica_.communicator->all_reduce(communication, stopped, stopped, ReduceOp::max);
}

void ShardedReducer::distribute() {
  // Without shards every replica has made the same update; before the first one nothing is decided.
  if (!replica_.shards_states() || !replica_.control) return;
  decisions_.start(Phase::broadcast, "decisions", "optimizer",
                   [this](ExecContext& communication) { share_decisions(communication); });
  const PhaseScope phase(replica_.device.compute(), Phase::broadcast);
  decisions_.join("broadcast");
}

}  // namespace vitrine
