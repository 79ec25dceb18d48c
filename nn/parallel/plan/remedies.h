// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/nn/parallel/plan/plan_search.h>

namespace vitrine {

/// Settings with the values that together make a configuration fit.
using Remedy = std::vector<Reason::Part>;

/// What to change if the configuration does not fit: alternatives, each found with the plan, those that keep the batch
/// first; empty if nothing helps. `space`: what is searched anyway, so that no remedy names it.
std::vector<Remedy> find_remedies(const PlanSearch& search, PlanSearch::SearchSpace space = {});
/// Text before the first remedy, and before each of the others.
inline constexpr const char *kFirstRemedy = "What would fit: ", *kNextRemedy = "; or ";
/// The same as text: "What would fit: EngineConfig::batch_size 48; or EngineConfig::accumulate 2; ...".
Reason describe_remedies(const PlanSearch& search, PlanSearch::SearchSpace space = {});

/// plan_memory(); where a device would need more than a plan can represent, the OutOfMemory lists what would fit.
std::vector<DevicePlan> plan_or_explain(const Model& model, DeviceGroup& devices, const EngineConfig& config,
                                        const Workload& workload, PlanDetail detail = PlanDetail::peaks);

}  // namespace vitrine
