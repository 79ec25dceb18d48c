// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/exact_price.h"

#include <algorithm>

#include "nn/parallel/reduce/leaf_plan.h"
#include "nn/parameter_store.h"

namespace vitrine {
namespace {

int64_t largest_peak(const std::vector<DevicePlan>& plans) {
  const auto less = [](const DevicePlan& a, const DevicePlan& b) { return a.peak_bytes < b.peak_bytes; };
  return std::max_element(plans.begin(), plans.end(), less)->peak_bytes;
}

}  // namespace

ExactPrice plan_exact_price(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                            const Workload& workload, const std::vector<DevicePlan>& plans) {
  EngineConfig ordinary = config;
  ordinary.scheme.split.leaves = ordinary.batch_norm_leaves = 0;
  ordinary.survive_device_loss = false;
  ExactPrice price;
  price.peak_bytes = largest_peak(plans);
  price.ordinary_peak_bytes = largest_peak(plan_memory(model, devices, ordinary, workload));
  const int64_t ranks = devices.world_size(),
                bytes = FlatLayout(model.net->parameters(), 0).trained_elements() * size_of(DType::f32);
  if (ranks == 1) return price;
  const Scheme& scheme = config.scheme;
  const bool to_owners = scheme.shards(Sharding::gradients);
  const LeafPlan leaves(scheme.split, config.batch_size, config.accumulate, devices.world_size(), to_owners);
  int64_t nodes = 0;
  for (int rank = 0; rank < devices.world_size(); ++rank) nodes = std::max(nodes, leaves.sent(rank));
  // A device sends its nodes to the owners of their parts, and an owner of whole gradients sends its sum to all.
  price.sent_bytes = (to_owners ? nodes : nodes + 1) * bytes * (ranks - 1) / ranks;
  const int64_t micro_batches = to_owners ? std::min<int64_t>(config.accumulate, config.batch_size) : 1;
  price.ordinary_sent_bytes = scheme.reduce == Reduce::gpu0    ? bytes
                              : scheme.shard != Sharding::none ? micro_batches * bytes * (ranks - 1) / ranks
                                                               : 2 * bytes * (ranks - 1) / ranks;
  return price;
}

}  // namespace vitrine
