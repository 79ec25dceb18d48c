// SPDX-License-Identifier: Apache-2.0
#include "kernels/tuned_plans.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/libraries.h"
#include "kernels/plan_tuner.h"
#include "kernels/recorded_operations.h"
#include "runtime/error.h"
#include "runtime/gpu_info.h"
#include "runtime/trace/span.h"

namespace vitrine {
namespace {

auto place_of(const std::vector<TunedPlan>& plans, const std::string& operation) {
  return std::lower_bound(plans.begin(), plans.end(), operation,
                          [](const TunedPlan& plan, const std::string& name) { return plan.operation < name; });
}

}  // namespace

const TunedPlan* TunedPlans::find(const std::string& operation) const {
  const auto place = place_of(plans, operation);
  return place != plans.end() && place->operation == operation ? &*place : nullptr;
}

void TunedPlans::put(TunedPlan plan) {
  const auto place = plans.begin() + (place_of(plans, plan.operation) - plans.begin());
  if (place != plans.end() && place->operation == plan.operation) {
    *place = std::move(plan);
  } else {
    plans.insert(place, std::move(plan));
  }
}

std::string tuned_device(DeviceId gpu) {
  const GpuReport report = query_gpus(false);
  for (const GpuInfo& info : report.gpus) {
    if (info.index != gpu.index) continue;
    return fmt::format("{}, compute capability {}.{}", info.name, info.compute_major, info.compute_minor);
  }
  throw UnsupportedError(fmt::format("{} is not in this machine: {}", gpu.str(), report.problem));
}

std::string tuned_libraries() {
  std::vector<std::string> names;
  for (const LibraryInfo& library : kernel_libraries(Backend::cuda))
    names.push_back(library.name + " " + library.version);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> recorded_operations(ExecContext& recorded) {
  VITRINE_ASSERT(recorded.backend() == Backend::meta, "only meta contexts record their operations");
  return recorded.plans().get<RecordedOperations>().lines();
}

void use_tuned_plans(ExecContext& ctx, std::shared_ptr<const TunedPlans> plans) {
  const OnDevice on_device(ctx);
  ctx.plans().get<PlanTuner>().use(std::move(plans));
}

std::vector<std::string> untuned_operations(ExecContext& ctx) {
  const std::set<std::string>& missed = ctx.plans().get<PlanTuner>().missed();
  return {missed.begin(), missed.end()};
}

void PlanTuner::use(std::shared_ptr<const TunedPlans> plans) {
  VITRINE_ASSERT(!searches(), "a search for plans ends before they are used");
  if (plans == nullptr && plans_ == nullptr) return;
  plans_ = std::move(plans);
  forget_plans();
}

void PlanTuner::begin(const TunedPlans& known, int64_t deadline_ns) {
  use(nullptr);
  result_ = std::make_unique<TuneResult>();
  result_->plans = {known.device, known.libraries, known.workspace_bytes, known.tf32, {}};
  known_ = &known;
  begin_ns_ = steady_now_ns();
  deadline_ns_ = deadline_ns;
  forget_plans();
}

TuneResult PlanTuner::end() {
  result_->seconds = static_cast<double>(steady_now_ns() - begin_ns_) * 1e-9;
  const std::unique_ptr<TuneResult> result = std::move(result_);
  known_ = nullptr;
  forget_plans();
  return std::move(*result);
}

void PlanTuner::forget_plans() {
  missed_.clear();
  for (const auto& forget : forget_) forget();
}

bool PlanTuner::out_of_time() const { return steady_now_ns() >= deadline_ns_; }

const TunedPlan* PlanTuner::find(const std::string& operation) const {
  return searches() ? known_->find(operation) : plans_->find(operation);
}

}  // namespace vitrine
