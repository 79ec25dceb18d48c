// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "nn/parallel/engine_setup.h"

/// Private to nn/parallel.
namespace vitrine {

/// Shape of the inputs of a batch, as they come from the host.
Shape staged_shape(const Model& model, const EngineConfig& config, int64_t samples);

/// Whether devices take the training batch's images from those that they hold.
bool gathers(const EngineConfig& config, const HostBatch& batch);

/// What this process's devices take of each batch size of the workload, and the checks of batches.
class PlannedBatches {
 public:
  /// Computes the parts once: that takes the sizes of all processes.
  explicit PlannedBatches(const EngineSetup& setup);

  /// requires a size of the workload
  const ProcessPart& training(int64_t samples) const { return training_.at(samples); }
  const MicroBatch& evaluation(int64_t samples) const { return evaluation_.at(samples); }

  /// Returns the samples of the global batch that `batch` is this process's part of. throws ConfigError unless it was
  /// planned for, has labels for this process's part, and has the sample indices that augmentation and gathering need;
  /// ShapeError, DtypeError for labels, images or indices that do not match the configuration.
  int64_t check_training(const HostBatch& batch) const;
  int64_t check_evaluation(const HostBatch& batch) const;

  /// Largest numbers of samples: of device `d` in one training micro-batch, and of all devices; of any device in an
  /// evaluation batch.
  int64_t largest_slice(int d) const;
  int64_t largest_micro_batch() const;
  int64_t largest_evaluation() const;
  /// How often a training step takes batch statistics: once in each micro-batch; in exact mode once for each group.
  int64_t statistics_per_step(int64_t samples) const;

 private:
  int64_t global_samples(const HostBatch& batch, const std::vector<int64_t>& planned, const char* operation) const;
  void check_batch(const HostBatch& batch, int64_t samples, int64_t rows, const char* operation,
                   bool from_dataset) const;
  void check_sample_indices(const HostBatch& batch, int64_t rows) const;

  const EngineSetup& setup_;
  std::map<int64_t, ProcessPart> training_;   // by samples of the global batch
  std::map<int64_t, MicroBatch> evaluation_;  // by samples of the global batch
};

}  // namespace vitrine
