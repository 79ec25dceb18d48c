// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/workspace.h"
#include "nn/parallel/engine_setup.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/process_group/agreement.h"

/// Private to nn/parallel.
namespace vitrine {

struct EngineFacts;

/// throws ConfigError, ShapeError, DtypeError, UnsupportedError for what no engine can do.
void validate(const Model& model, const DeviceGroup& devices, const EngineConfig& config, const Workload& workload);

/// Why Scheme::shard cannot be used with the rest of the configuration; null if it can.
const char* sharding_obstacle(const EngineConfig& config);
/// The same of EngineConfig::update_in_backward.
const char* update_in_backward_obstacle(const EngineConfig& config, int world_size);

/// Runs the workload of an engine on meta devices: the first step and a steady one, with the next batch's images
/// already there; then the other sizes. What the engine releases at the end is in sections of its own (Stager::kEnd).
///   on_step  called before each of the first two steps, and after them; may be empty
void run_on_meta(const Model& model, DeviceGroup& meta, const EngineConfig& config, const Workload& workload,
                 const std::function<void()>& on_step);

/// The plan of a configuration with workspace_bytes.
///   is_given  they are not what a plan chose: throws OutOfMemory if they are too few for an operation
std::vector<DevicePlan> plan_sized(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                   const Workload& workload, PlanDetail detail, bool is_given);
/// The plan of a configuration without workspace_bytes.
std::vector<DevicePlan> plan_with_workspace(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                            const Workload& workload, PlanDetail detail);

/// The workspace with which the plan of a configuration without workspace_bytes fits the devices, also where exact mode
/// does not shrink it; nothing if none does.
std::optional<int64_t> fitting_workspace(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                         const Workload& workload);

/// Gives the compute streams of all devices their tuned plans, by EngineConfig::autotune.   requires pools that are
/// reserved and empty
///   facts  with the plans; gets EngineFacts::tuned_plans and autotune
void tune_plans(const EngineSetup& setup, EngineFacts& facts);

/// Bytes of a plan beyond its device's capacity; below 0 where it fits.
int64_t missing_bytes(const DevicePlan& plan, const Device& device);

/// What all processes must agree on before they train one model together: parameters, buckets, dtypes, split,
/// configuration.
AgreementFields plan_fields(const Model& model, const FlatLayout& layout, const EngineConfig& config,
                            const Workload& workload);

/// What else they must agree on in exact mode, because it decides the bits of a leaf.
AgreementFields exact_fields(const DeviceGroup& devices, const EngineConfig& config);

/// throws ConfigError unless the configuration works with several processes and all of them plan the same.
void agree_with_processes(const EngineSetup& setup);

}  // namespace vitrine
