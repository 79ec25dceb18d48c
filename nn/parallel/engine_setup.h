// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "kernels/optimizer.h"
#include "nn/model.h"
#include "nn/parallel/engine_config.h"
#include "nn/parallel/leaf_plan.h"
#include "nn/parameter_store.h"
#include "runtime/device.h"

/// Private to nn/parallel.
namespace vitrine {

/// What an engine was constructed for. All its objects read it.
struct EngineSetup {
  EngineSetup(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload);
  EngineSetup(const EngineSetup&) = delete;
  EngineSetup& operator=(const EngineSetup&) = delete;

  const Model& model;
  DeviceGroup& devices;
  EngineConfig config;  // learning rate and momentum change between steps
  Workload workload;
  FlatLayout layout;
  FlatLayout trained;  // of gradients and optimizer states: layout.trained()
  BufferLayout buffer_layout;
  UpdateRanges update_ranges;              // of parameter groups; null without them
  std::map<int64_t, LeafPlan> leaf_plans;  // exact mode: of training batches, by samples

  bool on_gpus() const { return devices[0].id().backend == Backend::cuda; }
  /// The group of processes; null if this process trains alone, and on meta devices.
  ProcessGroup* peers() const { return devices.process_count() > 1 ? devices.process_group() : nullptr; }
  /// Whether a replica holds a part of the optimizer's states only.
  bool sharded() const { return config.shards(Sharding::optimizer, devices.world_size()); }
  /// See OutputExchange.
  int64_t nominal_targets() const { return config.batch_size * model.targets_per_sample; }
  /// throws ConfigError in an engine that only evaluates.
  void require_training(const char* operation) const;
};

/// The form in which the devices write the model's input (EngineConfig::input_packing); empty: as the images are.
ImageForm input_form(const Model& model, const DeviceGroup& devices, const EngineConfig& config);

}  // namespace vitrine
