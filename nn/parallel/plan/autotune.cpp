// SPDX-License-Identifier: Apache-2.0
// The timed choice among the plans of cuDNN and cuBLASLt, on which all processes agree.
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/engine.h"
#include "nn/parallel/plan/plan.h"
#include "nn/parallel/replicas/replica_group.h"
#include "nn/parallel/settings.h"
#include "nn/tuned_plans_file.h"
#include "runtime/memory/pool_placement.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The kinds of this process's GPUs, a line for each.
std::string kinds_of(DeviceGroup& devices) {
  std::string kinds;
  for (int d = 0; d < devices.size(); ++d) kinds += tuned_device(devices[d].id()) + "\n";
  return kinds;
}

/// Names the first GPU whose kind is not that of the first one; empty if there is none.
///   kinds  of each process, as kinds_of() has them
std::string describe_other_kind(const std::vector<std::string>& kinds) {
  const std::string first = lines_of(kinds.front()).front();
  for (size_t rank = 0; rank < kinds.size(); ++rank) {
    const std::vector<std::string> lines = lines_of(kinds[rank]);
    for (size_t d = 0; d < lines.size(); ++d) {
      if (lines[d] == first) continue;
      return fmt::format(
          "autotune: {}device {} is {}, but the plans are timed on {}, and plans are good for one kind of GPU; use "
          "GPUs of one kind, or leave "
          "EngineConfig::autotune out",
          kinds.size() > 1 ? fmt::format("rank {}, ", rank) : "", d, lines[d], first);
    }
  }
  return {};
}

/// Why known plans are not for this search; empty if they are.
///   wanted  with the device, libraries and sizes of the search
std::string describe_change(const TunedPlans& known, const TunedPlans& wanted) {
  std::vector<std::string> changes;
  const auto compare = [&](const char* what, const auto& before, const auto& now) {
    if (before != now) changes.push_back(fmt::format("{} {}, now {}", what, before, now));
  };
  compare("the GPU", known.device, wanted.device);
  compare("the libraries", known.libraries, wanted.libraries);
  compare("the workspace in bytes", known.workspace_bytes, wanted.workspace_bytes);
  compare("TF32 allowed", known.tf32, wanted.tf32);
  if (changes.empty()) return {};
  return fmt::format(
      "the stored plans were timed under other conditions ({}): all plans are timed again, and results may differ by "
      "rounding",
      fmt::join(changes, "; "));
}

/// The search on one of this process's devices.
TunedPlans search_plans(const EngineSetup& setup, const std::vector<DevicePlan>& plans,
                        const std::vector<std::string>& operations, const std::string& kind, AutotuneReport& report) {
  DeviceGroup& devices = setup.devices;
  const EngineConfig& config = setup.config;
  // What all devices do has room on the one with the largest plan.
  int device = 0;
  for (int d = 1; d < devices.size(); ++d) {
    if (plans[static_cast<size_t>(d)].peak_bytes > plans[static_cast<size_t>(device)].peak_bytes) device = d;
  }
  TunedPlans known{kind, tuned_libraries(), config.workspace_bytes.value(), devices.options().tf32, {}};
  if (const auto& stored = config.autotune.known) {
    const std::string change = describe_change(*stored, known);
    if (change.empty()) {
      known.plans = stored->plans;
    } else {
      report.warnings.push_back(change);
    }
  }
  ExecContext& ctx = devices[device].compute();
  TuneResult result = vitrine::tune_plans(ctx, operations, known, known.workspace_bytes, config.autotune.most_seconds,
                                          settings::kWorkspaceBytes);
  // Resets the pool's statistics: a plan does not contain the search.
  ctx.pool().reserve(plans[static_cast<size_t>(device)].peak_bytes);
  ctx.pool().follow(plans[static_cast<size_t>(device)].placement);
  report.timed = result.timed;
  report.reused = result.reused;
  report.failed_candidates = result.failed_candidates;
  report.seconds = result.seconds;
  report.warnings.insert(report.warnings.end(), result.notes.begin(), result.notes.end());
  if (!known.plans.empty() && result.timed > 0) {
    report.warnings.push_back(fmt::format("{} of {} kinds of operations had no stored plan and were timed now",
                                          result.timed, result.timed + result.reused));
  }
  return std::move(result.plans);
}

}  // namespace

void tune_plans(const EngineSetup& setup, EngineFacts& facts) {
  if (!setup.on_gpus()) return;
  DeviceGroup& devices = setup.devices;
  if (setup.config.autotune.enabled) {
    ProcessGroup* const group = setup.peers();
    const auto first_difference = [](const std::vector<std::string>& kinds) {
      return std::vector<std::string>{describe_other_kind(kinds)};
    };
    const std::string kinds = kinds_of(devices);
    const std::string problem = group != nullptr ? group->exchange("the kinds of GPUs", kinds, first_difference)
                                                 : first_difference({kinds}).front();
    if (!problem.empty()) throw ConfigError(problem);
    const std::unique_ptr<DeviceGroup> twin = devices.meta_twin();
    run_on_meta(setup.model, *twin, setup.config, setup.workload, {});
    std::set<std::string> operations;
    for (int d = 0; d < twin->size(); ++d) {
      for (std::string& line : recorded_operations((*twin)[d].compute())) operations.insert(std::move(line));
    }
    if (group != nullptr) {
      for (const std::string& of_rank :
           group->gather("the operations to time", fmt::format("{}", fmt::join(operations, "\n")))) {
        for (std::string& line : lines_of(of_rank)) operations.insert(std::move(line));
      }
    }
    std::string chosen;
    if (group == nullptr || group->rank() == 0) {
      try {
        chosen = tuned_plans_json(search_plans(setup, facts.plans, {operations.begin(), operations.end()},
                                               lines_of(kinds).front(), facts.autotune));
      } catch (...) {
        report_failure(setup, std::current_exception());
        throw;
      }
    }
    if (group != nullptr) chosen = group->broadcast("the timed plans", chosen);
    facts.tuned_plans = std::make_shared<const TunedPlans>(parse_tuned_plans("the plans of rank 0", chosen));
  }
  // An earlier engine on these devices may have had other plans.
  for (int d = 0; d < devices.size(); ++d) use_tuned_plans(devices[d].compute(), facts.tuned_plans);
}

}  // namespace vitrine
