// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/parallel/plan/plan_search.h"
#include "tools/program/record/record.h"
#include "tools/program/run/measure.h"

/// Facts of a run and of the machine, for its record; and the command line that repeats it.
namespace vitrine::tools {

/// "vitrine train --devices cpu:0-1 ...", quoted for a shell.
std::string command_line(const Options& options);

/// Model, data, scheme, optimizer, machine.
Facts run_facts(const Options& options, const Job& job, Run& run);
/// Date, host, processor and the version of the program.
Facts program_facts();
/// The same with devices (threads or GPU, and capacity) and the versions of what was built in.
Facts machine_facts(DeviceGroup& devices);

/// The configuration of a run; without measurements.
RunRecord configured_run(const Options& options, const EngineConfig& config, const BatchPlan& batch);
/// The same with devices as planned, those of several processes from the fullest on, and what they move.
RunRecord planned_run(const Options& options, const Job& job, EngineConfig config, const BatchPlan& batch,
                      const PlannedDevices& devices, const std::vector<DevicePlan>& plans);
/// planned_run() with one kind of states whole that the configuration shards, the last one; nothing if none is sharded,
/// or there is one device only.
std::optional<RunRecord> plan_stage_below(const Options& options, const Job& job, EngineConfig config,
                                          const BatchPlan& batch, const PlannedDevices& devices);

/// Sets RunRecord::image_bytes and ::label_bytes.
void add_sample_bytes(RunRecord& record, const Model& model, const EngineConfig& config);

/// What a device holds in the steady step of a plan with layers; nothing without one.
std::optional<MemoryTimeline> steady_step(const DevicePlan& plan);

/// Adds memory and spans of the step that charts show, for this process's devices.
void add_recorded_step(RunRecord& record, Run& run, const std::vector<DeviceSpans>& spans,
                       const RecordedSteps& recorded);

}  // namespace vitrine::tools
