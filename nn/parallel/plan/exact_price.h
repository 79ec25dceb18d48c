// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parallel/plan/memory_plan.h>

namespace vitrine {

/// What a step costs in exact mode, beside the same step without it. Each figure is the largest among the devices.
struct ExactPrice {
  int64_t sent_bytes = 0, ordinary_sent_bytes = 0;  // to reduce gradients, totals and batch statistics
  int64_t peak_bytes = 0, ordinary_peak_bytes = 0;
};

/// The larger of each figure.
ExactPrice most_of(const ExactPrice& a, const ExactPrice& b);

/// plans  of the configuration, which is exact      throws  ConfigError, ShapeError
ExactPrice plan_exact_price(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                            const Workload& workload, const std::vector<DevicePlan>& plans);

}  // namespace vitrine
