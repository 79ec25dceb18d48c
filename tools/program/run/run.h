// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "nn/model.h"
#include "nn/parallel/engine.h"
#include "nn/weights_file.h"
#include "runtime/gpu_info.h"
#include "runtime/process_group/process_group.h"
#include "tools/program/flags/options.h"
#include "tools/program/record/job.h"

namespace vitrine::tools {

/// A model on devices, under a scheme. Its Job must outlive it.
struct Run {
  int first_rank() const { return devices->first_rank(); }

  std::unique_ptr<DeviceGroup> devices;
  std::unique_ptr<Engine> engine;
};

/// Opens the data and builds the model for it. throws ConfigError, DataError, ShapeError.
Job open_job(const Options& options);
/// Host memory for the weights while they are loaded or saved.
int64_t weight_copies(const Options& options, const Job& job);
/// Host memory for the gradients, where they are compared or hashed.
int64_t gradient_copy(const Job& job);
/// Host memory for what train copies: weights, gradients, and the training state for checkpoints and for hashes
/// (DeviceGroupOptions::host_bytes). throws ConfigError
int64_t host_copies(const Options& options, const Job& job);

/// The batch sizes of `steps` training steps (nothing: whole epochs), and of evaluation on the test set.
Workload train_workload(const Options& options, const Job& job, std::optional<int64_t> steps, bool evaluate);
Workload evaluate_workload(const Options& options, const Job& job);
/// Samples of an evaluation batch: as many as of a micro-batch, with --exact of a whole batch.
int64_t evaluate_batch_size(const Options& options);

/// Configuration of the loader for this process's part of the batches.
LoaderConfig train_loader_config(const Options& options, const Job& job, const Run& run, int64_t epochs);
LoaderConfig evaluate_loader_config(const Options& options, const Job& job, const Run& run);

/// throws ConfigError, also for meta devices unless the command is plan.
DeviceGroupOptions device_group_options(const Options& options, const std::vector<DeviceId>& devices,
                                        std::shared_ptr<ProcessGroup> process_group = {});
EngineConfig engine_config(const Options& options, const Job& job, const Scheme& scheme, const Precision& precision);

/// Whether evaluations count the confusion matrix: --confusion, or --tensorboard for an image with at least one pixel
/// per class.
bool counts_confusion(const Options& options, const Job& job);

/// Checks that all processes have the same settings, apart from what may differ between processes. throws ConfigError
/// naming flag, ranks and values.
void agree_on_run(const Options& options, const Job& job, const std::vector<DeviceId>& devices,
                  ProcessGroup& process_group, int world_size);

/// Initial weights.
struct WeightsFile {
  std::string path;  // empty: none
  LoadOptions load = {};
  std::string option = {};  // that named it: errors begin with it
};
/// Of --init-weights.
WeightsFile initial_weights(const Options& options);

/// Replaces parameters and buffers by the values in a file. With several processes, rank 0 reads them. throws
/// DataError.
void load_weights(Run& run, const Job& job, const WeightsFile& weights);

/// Plans on the devices and fills the parameters: from `weights` if given (with several processes, rank 0 reads them),
/// otherwise from the seed.
///   record_memory      keep the history of the pools, for a trace file
///   reads_all_samples  the run is long enough to read all of them: what their first read costs is done now
/// throws DeviceError, UnsupportedError, OutOfMemory, ConfigError, DataError.
Run open_run(std::unique_ptr<DeviceGroup> devices, const Job& job, const EngineConfig& config, const Workload& workload,
             const WeightsFile& weights, bool record_memory = false, bool reads_all_samples = true);

}  // namespace vitrine::tools
