// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/model_passes.h"
#include "nn/parallel/results/step_result.h"

/// Private to nn/parallel.
namespace vitrine {

/// A batch forward without training.
class Evaluation {
 public:
  Evaluation(const EngineSetup& setup, ReplicaGroup& replicas, Stager& stager, OutputExchange& outputs,
             ModelPasses& passes)
      : setup_(setup), replicas_(replicas), stager_(stager), outputs_(outputs), passes_(passes) {}

  /// Issues a batch: each device adds loss and counts to its evaluation totals.
  ///   samples  of the global batch
  void issue(const HostBatch& batch, const MicroBatch& part, int64_t samples);
  /// Waits, and returns the totals of all devices; copies the outputs to `logits`, in batch order, unless that is null.
  StepResult read(float* logits);

 private:
  const EngineSetup& setup_;
  ReplicaGroup& replicas_;
  Stager& stager_;
  OutputExchange& outputs_;
  ModelPasses& passes_;
};

}  // namespace vitrine
