// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/exact_reducer.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/tree_sum.h"
#include "runtime/copy.h"
#include "runtime/trace/communication_table.h"

namespace vitrine {
namespace {

/// Sums of nodes, by first leaf.
using NodeParts = std::map<int64_t, std::pair<Subtree, ConstView>>;

void sum_parts(ExecContext& ctx, const NodeParts& parts, const View& sum) {
  std::vector<Subtree> nodes;
  std::vector<ConstView> inputs;
  for (const auto& [first_leaf, part] : parts) {
    nodes.push_back(part.first);
    inputs.push_back(part.second);
  }
  tree_sum(ctx, nodes, inputs, sum);
}

}  // namespace

ExactReducer::ExactReducer(const ReducerContext& replica, const std::map<int64_t, LeafPlan>& plans)
    : replica_(replica),
      plans_(plans),
      buckets_(make_buckets(replica.layout, replica.config.first_bucket_bytes, replica.config.bucket_bytes)),
      squares_(replica),
      overlap_(replica.device) {
  ExecContext& ctx = replica.device.compute();
  int buffers = 1;
  for (const auto& [samples, plan] : plans) buffers = std::max(buffers, plan.buffers(replica.rank));
  if (buffers > 1) {
    nodes_ = ctx.allocate({buffers - 1, replica.gradient_elements()}, DType::f32, Category::gradients,
                          "pending subtrees of leaves");
    zero(ctx, nodes_);
  }
  totals_ = ctx.allocate({replica.config.scheme.split.leaves, LossTotals::kCount}, DType::f32, Category::staging,
                         "totals of leaves");
  if (alone()) return;
  const Scheme& scheme = replica.config.scheme;
  if (replica.shards_gradients()) {
    auto sharded = std::make_unique<ShardedReducer>(replica, static_cast<BucketNodes*>(this));
    sharded_ = sharded.get();
    updating_ = std::move(sharded);
  } else if (scheme.reduce == ReducerKind::gpu0 || scheme.shard != Sharding::none) {
    updating_ = make_reducer(replica);
  }
}

void ExactReducer::reset() {
  overlap_.reset();
  if (updating_) updating_->reset();
}

void ExactReducer::begin_batch(int64_t samples) { plan_ = &plans_.at(samples); }

void ExactReducer::begin_step(int64_t step) {
  next_ = 0;
  if (sharded_ != nullptr) sharded_->begin_step(step);
  const PhaseScope phase(replica_.device.compute(), Phase::loss);
  zero(replica_.device.compute(), totals_);
}

void ExactReducer::begin_micro_batch(int index, const Leaves& leaves) {
  micro_batch_ = index;
  leaves_ = &leaves;
}

View ExactReducer::buffer(int index) const {
  const int64_t elements = replica_.gradient_elements();
  return index == 0 ? replica_.gradients.rows(0, elements) : nodes_.view().rows(index - 1, index).reshape({elements});
}

template <class Collective>
void ExactReducer::reduce_now(const char* name, const Collective& collective) {
  overlap_.start(Phase::reduce, name, "compute", collective);
  overlap_.join(name);
}

void ExactReducer::sum_groups(ExecContext& ctx, const View& by_leaf, const View& sums) {
  const std::vector<int>& numbers = plan_->leaves_of(micro_batch_);
  const auto position = [&](int64_t number) {
    return std::lower_bound(numbers.begin(), numbers.end(), number) - numbers.begin();
  };
  const Tensor rows = ctx.allocate({static_cast<int64_t>(numbers.size()), sums.shape[1]}, DType::f32,
                                   Category::activations, "sums of leaves");
  zero(ctx, rows);
  if (!leaves_->own.empty()) {
    const int64_t first = position(leaves_->own.front().number);
    const View own = rows.view().rows(first, first + static_cast<int64_t>(leaves_->own.size()));
    vitrine::add(ctx, by_leaf, own, own);  // -0.0 becomes 0.0, as it does in the sum with other devices
  }
  // Each row comes from one device, and the others add zeros to it: no rounding, in whatever order.
  if (!alone()) {
    reduce_now(kBatchStatistics,
               [&](ExecContext& communication) { replica_.communicator->all_reduce(communication, rows.view()); });
  }
  const RowRange all = plan_->range_of(micro_batch_);
  const int64_t groups = sums.shape[0], size = all.size() / groups;
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<Subtree> nodes;
    std::vector<ConstView> inputs;
    for (int64_t i = position(all.begin + g * size); i < position(all.begin + (g + 1) * size); ++i) {
      const int64_t number = numbers[static_cast<size_t>(i)] - all.begin - g * size;
      nodes.push_back({number, number + 1});
      inputs.push_back(rows.view().rows(i, i + 1));
    }
    if (!nodes.empty()) tree_sum(ctx, nodes, inputs, sums.rows(g, g + 1));
  }
}

void ExactReducer::add_gradient(ExecContext& ctx, const View& by_leaf, const View& grad) {
  const PhaseScope phase(ctx, Phase::backward, kLeafSums);
  const int64_t n = grad.numel();
  const auto values = [&](const LeafNode& node) {
    if (sharded_ != nullptr) return sharded_->in_node(grad, node.buffer);
    const int64_t first = static_cast<const float*>(grad.data) - static_cast<const float*>(replica_.gradients.data);
    return buffer(node.buffer).rows(first, first + n);
  };
  for (const LeafNode& node : plan_->nodes_after(replica_.rank, micro_batch_)) {
    NodeParts parts;
    for (size_t i = 0; i < leaves_->own.size(); ++i) {
      const int64_t number = leaves_->own[i].number, row = static_cast<int64_t>(i);
      if (node.leaves.begin <= number && number < node.leaves.end)
        parts[number] = {{number, number + 1}, by_leaf.rows(row, row + 1).reshape({n})};
    }
    if (parts.empty()) continue;  // as it was
    for (const LeafNode& before : plan_->nodes_before(replica_.rank, micro_batch_)) {
      if (contains(node.leaves, before.leaves)) parts[before.leaves.begin] = {before.leaves, values(before)};
    }
    sum_parts(ctx, parts, values(node));
  }
}

void ExactReducer::begin_backward(bool first, bool last) { sharded_->begin_backward(first, last); }

void ExactReducer::begin_gradients(int64_t elements, const FlatLayout& all, std::vector<View>& views) {
  sharded_->begin_gradients(elements, all, views);
}

void ExactReducer::add(int64_t finished_elements) {
  if (sharded_ != nullptr) return sharded_->add(finished_elements);
  while (!alone() && next_ < buckets_.size() && buckets_[next_].parameters_end <= finished_elements)
    reduce(buckets_[next_++]);
}

void ExactReducer::reduce(const Bucket& bucket) {
  std::vector<ConstView> nodes;
  for (const LeafNode& node : plan_->nodes_after(replica_.rank, micro_batch_))
    nodes.push_back(buffer(node.buffer).rows(bucket.begin, bucket.parameters_end));
  overlap_.start(Phase::reduce, bucket.name.c_str(), "backward", [&](ExecContext& communication) {
    replica_.communicator->tree_all_reduce(communication, plan_->contributions(micro_batch_), nodes,
                                           replica_.gradients.rows(bucket.begin, bucket.parameters_end));
  });
}

void ExactReducer::reduce(const ShardedBucket& bucket, const View& memory, const Subtree& node, const View& sum) {
  ExecContext& communication = replica_.device.communication();
  const int64_t elements = bucket.elements(), divided = bucket.shards.size * replica_.world_size;
  std::vector<Contribution> contributions;
  for (const Contribution& one : plan_->contributions(micro_batch_)) {
    if (contains(node, one.node)) contributions.push_back(one);
  }
  std::vector<ConstView> shards, shared;
  for (const LeafNode& own : plan_->nodes_after(replica_.rank, micro_batch_)) {
    if (!contains(node, own.leaves)) continue;
    const View row = memory.rows(own.buffer * elements, (own.buffer + 1) * elements);
    shards.push_back(row.rows(0, divided));
    shared.push_back(row.rows(divided, elements));
  }
  const int64_t size = bucket.shards.size;
  if (size > 0) replica_.communicator->tree_reduce_scatter(communication, contributions, shards, sum.rows(0, size));
  if (divided < elements)
    replica_.communicator->tree_all_reduce(communication, contributions, shared, sum.rows(size, sum.numel()));
}

void ExactReducer::reduce(const ShardedBucket& bucket, const View& memory) {
  ExecContext& communication = replica_.device.communication();
  const int64_t owned =
      bucket.shared_in_shard - bucket.own_in_shard + bucket.bucket.parameters_end - bucket.shards.shared_begin;
  const auto own = [&](const LeafNode& node) {
    return buffer(node.buffer).rows(bucket.own_in_shard, bucket.own_in_shard + owned);
  };
  for (const LeafNode& node : plan_->owned(micro_batch_)) {
    std::vector<Subtree> arriving = plan_->arriving(micro_batch_);
    std::erase_if(arriving, [&](const Subtree& one) { return !contains(node.leaves, one); });
    if (arriving.empty()) continue;  // as it was
    if (arriving.front() == node.leaves) {
      reduce(bucket, memory, node.leaves, own(node));
      continue;
    }
    const Tensor received = communication.allocate({static_cast<int64_t>(arriving.size()) * owned}, DType::f32,
                                                   Category::communication, "subtrees of a micro-batch");
    NodeParts parts;
    for (size_t i = 0; i < arriving.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) * owned;
      const View sum = received.view().rows(at, at + owned);
      reduce(bucket, memory, arriving[i], sum);
      parts[arriving[i].begin] = {arriving[i], sum};
    }
    for (const LeafNode& before : plan_->owned(micro_batch_ - 1)) {
      if (contains(node.leaves, before.leaves)) parts[before.leaves.begin] = {before.leaves, own(before)};
    }
    sum_parts(communication, parts, own(node));
  }
}

void ExactReducer::sum_totals() {
  ExecContext& compute = replica_.device.compute();
  const int64_t count = LossTotals::kCount;
  if (!alone()) {
    reduce_now("totals", [&](ExecContext& communication) {
      replica_.communicator->all_reduce(communication, totals_.view());  // each row comes from one device
      replica_.communicator->all_reduce(communication, replica_.tail().rows(count, replica_.layout.tail_elements()));
    });
  }
  std::vector<Subtree> nodes;
  std::vector<ConstView> inputs;
  for (int i = 0; i < plan_->leaves(); ++i) {
    nodes.push_back({i, i + 1});
    inputs.push_back(totals_of(i));
  }
  tree_sum(compute, nodes, inputs, replica_.tail().rows(0, count));
}

void ExactReducer::finish() {
  add(replica_.layout.parameter_elements());
  if (sharded_ != nullptr) sharded_->finish();
  sum_totals();
  if (!updates()) return;
  squares_.sum([this](const View& sums) {
    reduce_now("squares", [&](ExecContext& communication) { replica_.communicator->all_reduce(communication, sums); });
  });
}

void ExactReducer::distribute() {
  if (updating_) updating_->distribute();
}

}  // namespace vitrine
