// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "nn/parallel/engine_setup.h"
#include "nn/parallel/plan/memory_plan.h"

/// Private to nn/parallel.
namespace vitrine {

/// What EngineConfig::autotune has chosen.
struct Tuning {
  std::shared_ptr<const TunedPlans> plans;  // in use, the same on all processes; null without autotune
  AutotuneReport report;                    // of rank 0's search; empty on other ranks
};

/// Gives the compute streams of all devices their tuned plans. The pools are reserved and empty.
Tuning tune_plans(const EngineSetup& setup, const std::vector<DevicePlan>& plans);

}  // namespace vitrine
