// SPDX-License-Identifier: Apache-2.0
// What an engine will need, found by running its steps on meta devices.
#include "nn/parallel/plan/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/settings.h"
#include "runtime/memory/pool_placement.h"

namespace vitrine {
namespace {

/// Activations that each layer holds for backward at the end of the forward pass that holds most, from the history of a
/// pool.
std::vector<HeldBytes> held_for_backward(const std::vector<MemoryEvent>& history) {
  std::map<int64_t, const MemoryEvent*> live;  // by offset
  std::vector<HeldBytes> most;
  int64_t most_bytes = 0;
  const auto take = [&] {
    std::vector<HeldBytes> held;
    int64_t bytes = 0;
    std::vector<const MemoryEvent*> blocks;
    for (const auto& [offset, block] : live) {
      if (block->category == Category::activations) blocks.push_back(block);
    }
    // The events lie in one vector, in the order in which they happened.
    std::ranges::sort(blocks);
    for (const MemoryEvent* block : blocks) {
      const std::string& layer = block->layer.empty() ? block->tensor : block->layer;
      if (held.empty() || held.back().layer != layer) held.push_back({layer, 0});
      held.back().bytes += block->bytes;
      bytes += block->bytes;
    }
    if (bytes > most_bytes) {
      most = std::move(held);
      most_bytes = bytes;
    }
  };
  Phase phase = Phase::setup;
  for (const MemoryEvent& event : history) {
    if (phase == Phase::forward && event.phase != Phase::forward) take();
    phase = event.phase;
    if (event.bytes > 0) {
      live[event.offset] = &event;
    } else if (event.bytes < 0) {
      live.erase(event.offset);
    }
  }
  return most;
}

using PlacedRecords = std::vector<std::pair<PoolRecord, std::shared_ptr<const PoolPlacement>>>;

/// Places the blocks of a pool, or finds a pool with the same blocks among those placed before: most devices have the
/// same blocks as another.
std::shared_ptr<const PoolPlacement> placement_of(PoolRecord record, PlacedRecords& placed) {
  const auto known = std::ranges::find_if(placed, [&](const auto& other) { return other.first == record; });
  if (known != placed.end()) return known->second;
  auto placement = std::make_shared<const PoolPlacement>(place_pool(record));
  return placed.emplace_back(std::move(record), std::move(placement)).second;
}

/// Gives the blocks of a history, which begins with the record of the placement, their offsets.
void move_blocks(MemoryHistory& history, const PoolPlacement& placement) {
  std::map<int64_t, int64_t> moved;  // offsets of the blocks in use
  size_t block = 0;
  for (MemoryEvent& event : history.changes) {
    if (event.bytes > 0) {
      const int64_t offset = placement.offsets[block++];
      moved[event.offset] = offset;
      event.offset = offset;
    } else {
      event.offset = moved.at(event.offset);
    }
  }
}

}  // namespace

std::vector<DevicePlan> plan_memory(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                    const Workload& workload, PlanDetail detail) {
  validate(model, devices, config, workload);
  if (!config.workspace_bytes) return plan_with_workspace(model, devices, config, workload, detail);
  return plan_sized(model, devices, config, workload, detail, true);
}

std::vector<DevicePlan> plan_sized(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                   const Workload& workload, PlanDetail detail, bool is_given) {
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin();
  std::vector<DevicePlan> plans(static_cast<size_t>(twin->size()));
  int steps = 0;
  const auto keep_history = [&] {
    for (int i = 0; i < twin->size(); ++i) {
      DevicePlan& plan = plans[static_cast<size_t>(i)];
      Pool& pool = (*twin)[i].pool();
      if (steps < 2) continue;
      plan.history = pool.history();
      pool.record_history(false);
    }
    ++steps;
  };
  const bool layers = detail == PlanDetail::layers;
  for (int i = 0; layers && i < twin->size(); ++i) (*twin)[i].pool().record_history(true);
  for (int i = 0; i < twin->size(); ++i) (*twin)[i].pool().start_record();
  run_on_meta(model, *twin, config, workload, layers ? keep_history : std::function<void()>());
  PlacedRecords placed;
  for (int i = 0; i < twin->size(); ++i) {
    Device& device = (*twin)[i];
    Pool& pool = device.pool();
    const PoolStatistics s = pool.statistics();
    DevicePlan& plan = plans[static_cast<size_t>(i)];
    plan.workspace = {config.workspace_bytes.value(), config.workspace_bytes.value(), {}, ""};
    plan.placement = placement_of(pool.take_record(), placed);
    plan.peak_bytes = plan.placement->height;
    plan.unplaced_peak_bytes = s.peak_bytes;
    plan.peak_by_category = s.peak_by_category;
    plan.peak_by_category[static_cast<size_t>(Category::fragmentation)] =
        plan.peak_bytes - allocated_bytes(s.peak_by_category);
    plan.peak_phase = s.peak_phase;
    plan.peak_layer = s.peak_layer;
    move_blocks(plan.history, *plan.placement);
    plan.held_activations = held_for_backward(plan.history.changes);
    if (!is_given || config.workspace_record) continue;  // without the libraries nobody can say what is too small
    device.compute().reserve_workspace(plan.workspace.bytes, settings::kWorkspaceBytes);
    require_workspace(device.compute(), {device.target(), device.thread_count()});
  }
  return plans;
}

std::string describe_peak(const DevicePlan& plan) {
  return fmt::format("phase {}{}{}", phase_name(plan.peak_phase), plan.peak_layer.empty() ? "" : " of layer ",
                     plan.peak_layer);
}

}  // namespace vitrine
