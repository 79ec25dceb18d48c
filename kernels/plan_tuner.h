// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tuned_plans.h"

namespace vitrine {

/// Makes the context's GPU current for its lifetime.
class OnDevice {
 public:
  explicit OnDevice(ExecContext& ctx) : stream_(ctx.stream()), previous_(stream_.enter()) {}
  ~OnDevice() { stream_.leave(previous_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Stream& stream_;
  int previous_;
};

/// The tuned plans of a context, in its PlanCache, or the search for them in progress.
class PlanTuner {
 public:
  /// Calls `forget` in use(), begin() and end(): plans that a library has chosen before are not valid any more. The
  /// context destroys both together. use(), begin() and end() are called with the context's GPU current.
  void on_change(std::function<void()> forget) { forget_.push_back(std::move(forget)); }
  /// Whether operations have tuned plans, or get them now.
  bool active() const { return plans_ != nullptr || result_ != nullptr; }
  void use(std::shared_ptr<const TunedPlans> plans);

  /// Starts a search, which ends at `deadline_ns` (steady_now_ns()). `known` must outlive it.
  void begin(const TunedPlans& known, int64_t deadline_ns);
  TuneResult end();
  bool searches() const { return result_ != nullptr; }
  bool out_of_time() const;
  TuneResult& result() { return *result_; }

  /// The plan of the operation, or null.
  const TunedPlan* find(const std::string& operation) const;
  /// Remembers an operation without a plan that runs by the library's choice.
  void note_missed(const std::string& operation) { missed_.insert(operation); }
  const std::set<std::string>& missed() const { return missed_; }

 private:
  void forget_plans();

  std::shared_ptr<const TunedPlans> plans_;
  const TunedPlans* known_ = nullptr;
  std::unique_ptr<TuneResult> result_;  // null: no search is in progress
  int64_t begin_ns_ = 0, deadline_ns_ = 0;
  std::vector<std::function<void()>> forget_;
  std::set<std::string> missed_;
};

}  // namespace vitrine

namespace vitrine::cuda {

/// A plan that a library proposes.
struct TimedCandidate {
  std::string plan;  // TunedPlan::plan
  std::function<void()>
      run;  // queues the operation by it on the context's stream; throws CudaError if the library refuses
};

/// Times the candidates, which are in the library's order, until the search runs out of time, and puts the fastest into
/// the search's result; of plans that take the same time the earlier one. Returns its index, or -1 if none could run.
/// requires  ctx.plans().get<PlanTuner>().searches(), and an idle stream     ensures  an idle stream
/// throws    CudaError when the GPU itself has failed
int time_candidates(ExecContext& ctx, const std::string& operation, const std::vector<TimedCandidate>& candidates);

}  // namespace vitrine::cuda
