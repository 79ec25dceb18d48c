// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "nn/parallel/engine_setup.h"
#include "nn/parallel/plan/memory_plan.h"

/// Private to nn/parallel.
namespace vitrine {

/// Compares the measured peak of each device's pool with its plan.
class PeakCheck {
 public:
  void on_trained(int64_t samples) { trained_.insert(samples); }
  void on_evaluated(int64_t samples) { evaluated_.insert(samples); }
  /// An error cut a step short: the peak may be lower than the plan.
  void on_disturbed() { disturbed_ = true; }
  /// Asserts that no peak exceeds its plan, and that all equal their plans if the whole workload was run undisturbed.
  void check(const EngineSetup& setup, const std::vector<DevicePlan>& plans) const;

 private:
  std::set<int64_t> trained_, evaluated_;  // sizes of batches
  bool disturbed_ = false;
};

}  // namespace vitrine
