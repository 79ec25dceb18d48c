// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "nn/parallel/engine.h"
#include "nn/parallel/step/model_passes.h"
#include "nn/parallel/step/step_window.h"
#include "nn/parallel/step_graphs.h"

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

/// The objects of an engine. Each uses those before it.
struct Engine::State {
  ///   known  plans, and what autotune has done
  State(std::unique_ptr<EngineSetup> engine_setup, EngineFacts known);
  /// Waits for the devices: what follows the replicas ends before them, but is in use until then.
  ~State() { replicas.wait_for_end(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  /// Begins a step, runs EngineConfig::step or default_step(), and copies its results to record `slot`.
  ///   samples  of the global batch
  void issue(Engine& engine, const HostBatch& batch, int64_t samples, int slot);
  /// What follows the last micro-batch of a step, whose results go to `slot`.
  void end_step(int slot);

  const std::unique_ptr<EngineSetup> setup;
  EngineFacts facts;
  PlannedBatches batches;
  ReplicaGroup replicas;
  Stager stager;
  OutputExchange outputs;
  ModelPasses passes;
  StepWindow window;
  PeakCheck peaks;
  Parameters parameters;
  Checkpointer checkpointer;
  std::unique_ptr<StepGraphs> graphs;        // null: steps are issued, and EngineFacts::cuda_graphs says why
  const ProcessPart* issued_part = nullptr;  // of the step that is being issued; null between steps
  std::optional<StagedBatch> staged;         // the latest micro-batch of that step
  bool work_begun = false;                   // replay_or_issue() was called for it
  bool reduction_on = true;
};

}  // namespace vitrine
