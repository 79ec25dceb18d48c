// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/peak_check.h"

#include <algorithm>

#include "runtime/error.h"

namespace vitrine {

void PeakCheck::check(const EngineSetup& setup, const std::vector<DevicePlan>& plans) const {
  const auto all_of = [](const std::vector<int64_t>& planned, const std::set<int64_t>& done) {
    return std::all_of(planned.begin(), planned.end(), [&](int64_t size) { return done.contains(size); });
  };
  const bool whole = !disturbed_ && all_of(setup.workload.train_batches, trained_) &&
                     all_of(setup.workload.evaluate_batches, evaluated_);
  for (int i = 0; i < setup.devices.size(); ++i) {
    const PoolStatistics measured = setup.devices[i].pool().statistics();
    const DevicePlan& planned = plans[static_cast<size_t>(i)];
    VITRINE_ASSERT(measured.peak_bytes <= planned.peak_bytes, "a pool never exceeds its plan");
    VITRINE_ASSERT(
        !whole || (measured.peak_bytes == planned.peak_bytes && measured.peak_by_category == planned.peak_by_category),
        "the measured peak is the planned one");
  }
}

}  // namespace vitrine
