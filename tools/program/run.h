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
#include "runtime/gpu_info.h"
#include "runtime/process_group/process_group.h"
#include "tools/program/options.h"

namespace vitrine::tools {

/// The data and the model of a run.
struct Job {
  DatasetPair data;
  Model model;
  Normalization normalization;
};

/// A model on devices, under a scheme. Its Job must outlive it.
struct Run {
  int first_rank() const { return devices->first_rank(); }

  std::unique_ptr<DeviceGroup> devices;
  std::unique_ptr<Engine> engine;
};

/// Opens the data and builds the model for it. throws ConfigError, DataError, ShapeError.
Job open_job(const Options& options);

/// Sizes of training batches in `steps` steps (none: whole epochs), and of evaluation batches of the test set.
Workload train_workload(const Options& options, const Job& job, std::optional<int64_t> steps, bool evaluate);
Workload evaluate_workload(const Options& options, const Job& job);
/// Samples of an evaluation batch: as many as a micro-batch has.
int64_t evaluate_batch_size(const Options& options);

/// Of this process's part of the batches.
LoaderConfig train_loader_config(const Options& options, const Job& job, const Run& run, int64_t epochs);
LoaderConfig evaluate_loader_config(const Options& options, const Job& job, const Run& run);

/// throws ConfigError; on meta devices too, unless it is for a plan.
DeviceGroupOptions device_group_options(const Options& options, const std::vector<DeviceId>& devices,
                                        std::shared_ptr<ProcessGroup> process_group = {});
/// The workspace of a device when --workspace is not given. A function of shapes alone, so that plans hold anywhere.
int64_t default_workspace(const Model& model, Backend backend, const Precision& precision);
/// --recompute-segments; sqrt: the square root of the number of the model's parts. throws ConfigError.
int resolve_recompute_segments(const Options& options, const Model& model);
EngineConfig engine_config(const Options& options, const Job& job, const Scheme& scheme, const Precision& precision);

/// What the processes of a run must have in common beside the engine's plan. throws ConfigError.
void agree_on_run(const Options& options, const Job& job, ProcessGroup& process_group);

/// Weights to begin with.
struct WeightsFile {
  std::string path;  // empty: none
  bool allow_non_finite = false;
};

/// Plans on the devices, and fills the parameters: from `weights` if there are any (of several processes, on rank 0),
/// else from the seed.
///   record_memory  keep the history of the pools, for a trace file
/// throws DeviceError, UnsupportedError, OutOfMemory, ConfigError, DataError.
Run open_run(std::unique_ptr<DeviceGroup> devices, const Job& job, const EngineConfig& config, const Workload& workload, const WeightsFile& weights,
             bool record_memory = false);

}  // namespace vitrine::tools
