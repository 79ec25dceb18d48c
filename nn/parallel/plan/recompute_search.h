// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <vitrine/nn/parallel/plan/plan_search.h>
#include <vitrine/nn/recomputation.h>

namespace vitrine {

/// A choice of what is recomputed, with its plan.
struct RecomputePoint {
  std::vector<std::string> recompute;  // EngineConfig::recompute; empty: nothing
  int64_t peak_bytes = 0;              // of the fullest device, as planned
  /// Time of recomputation as a share of the time of the forward and backward pass, both as estimated by units_of()
  /// (segments.h); backward counts as two forward passes.
  double added_time = 0.0;
  int64_t modeled_bytes = 0;  // peak predicted by the model of the device
  Fit fit;
};

/// Searches what an engine recomputes, so that it costs least time. The optimizer (recomputation.h) is exact for a
/// model of one device, the one with the least headroom: the blocks of its planned step, without gaps between them.
/// Each choice is then planned on all devices, and the figures are those of the plans. Batches of other sizes,
/// evaluation, gaps and devices with other shares of the batch can make a plan larger than the model. Times are
/// estimated from shapes, not measured.
class RecomputeSearch {
 public:
  /// Plans the configuration with nothing recomputed.
  /// throws  as plan_memory(); ConfigError for an engine that does not train; SearchStopped, as its functions do (see
  ///         Workload::stop)
  explicit RecomputeSearch(const PlanSearch& search);

  /// From nothing recomputed to the lowest peak: each choice has a lower peak and takes more time than the one before
  /// it. At most about `count` of them, at equal distances in bytes, and cheapest_that_fits(), if the device's capacity
  /// is known.
  std::vector<RecomputePoint> frontier(int count) const;

  /// The choice with the least time that fits on every device; nothing if none does.
  std::optional<RecomputePoint> cheapest_that_fits() const;

  const RecomputationModel& model() const { return parts_; }

 private:
  RecomputePoint planned(const RecomputationChoice& choice) const;

  int64_t capacity_bytes() const;

  PlanSearch search_;
  int device_ = 0;  // the one that is modeled
  RecomputationModel parts_;
};

}  // namespace vitrine
