// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/parallel/step/output_exchange.h"
#include "nn/parallel/step/stager.h"
#include "nn/parallel/step/step_result.h"
#include "nn/sequential.h"

/// Private to nn/parallel.
namespace vitrine {

/// What each replica computes: forward and backward over its samples of the current micro-batch, and the update.
class ModelPasses {
 public:
  /// throws ConfigError for segments of activation checkpointing that the model does not have.
  ModelPasses(const EngineSetup& setup, ReplicaGroup& replicas, Stager& stager, OutputExchange& outputs);
  ModelPasses(const ModelPasses&) = delete;
  ModelPasses& operator=(const ModelPasses&) = delete;

  /// Begins optimizer step `step`, or its repetition.
  ///   samples  of the global batch
  void begin_step(int64_t step, int64_t samples);
  /// The totals of the step begin at zero, with this process's vote to stop.
  void begin_totals();
  int64_t step() const { return step_; }
  /// From the next step on the reduction counts a vote to stop of this process.
  void vote_to_stop() { votes_to_stop_ = true; }
  bool votes_to_stop() const { return votes_to_stop_; }

  /// In training from what was staged; in evaluation (null) from the prepared input.
  void forward(const StagedBatch* staged);
  /// Backward over the replica's samples. Frees the outputs' gradients that it scattered.
  void run_backward(Replica& r, const std::function<void(int)>& gradients_ready);
  /// The same on a replica without samples, for which the others may wait: it takes part in the layers' sums over the
  /// micro-batch, and contributes zeros if the step `reduces` its gradients now.
  void run_backward_empty(Replica& r, bool reduces, const std::function<void(int)>& gradients_ready);
  /// Gradients that no sample has written are zero.
  void zero_unwritten_gradients(Replica& r);
  /// BatchStatistics::local: all replicas take the saved buffers of rank 0.
  void share_buffers();
  /// Decides whether the step is taken, and counts the update, so that run_optimizer() need not.
  void decide(Replica& r);
  /// Updates the replica's shard.
  void run_optimizer(Replica& r);
  /// EngineConfig::update_in_backward: the step is decided, and backward may update parameters.
  static void begin_updates(Replica& r);

  /// Issues a batch forward without training: each device adds loss and counts to its evaluation totals.
  ///   samples  of the global batch
  void evaluate(const HostBatch& batch, const MicroBatch& part, int64_t samples);
  /// Waits, and returns the totals of all devices; copies the outputs to `logits`, in batch order, unless that is null.
  StepResult read_evaluation(float* logits);

  /// Runs the forward passes of a step again and returns what is not finite first on the devices of all processes;
  /// empty when all outputs are finite.
  std::string find_first_non_finite(int64_t step, int64_t samples, const HostBatch& batch, const ProcessPart& part);

 private:
  /// Begins a pass. Returns what gathers its parameters, null if there is nothing to gather.
  Sequential::ParametersUsed used_by(Replica& r, GatheredParameters::Direction direction);
  Pass pass_of(const Replica& r, bool training) const;
  UpdateCount update_count(const Replica& r) const;
  void update(Replica& r, const ShardPiece& piece, const View& gradients);
  /// The first value of a forward pass that is not finite, as a search numbers it: parameters, the input, then the
  /// outputs of the model's parts.
  std::string describe_non_finite(int32_t found) const;

  const EngineSetup& setup_;
  ReplicaGroup& replicas_;
  Stager& stager_;
  OutputExchange& outputs_;
  const std::vector<PartRange> recomputed_;  // segments of activation checkpointing
  int64_t step_ = 0;
  bool votes_to_stop_ = false;
  bool searches_non_finite_ = false;
};

}  // namespace vitrine
