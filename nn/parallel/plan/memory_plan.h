// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/device_plan.h>
#include <vitrine/nn/parallel/engine_config.h>

namespace vitrine {

/// What a plan contains: the peaks, or also what layers hold and how memory changes over a step.
enum class PlanDetail { peaks, layers };

/// GPUs: what cuBLASLt's documentation recommends for compute capability 9.0. CPU devices get at most
/// kMostCpuWorkspace, or kMostWinogradWorkspace if convolutions may run by Winograd's algorithm, which transforms the
/// weights of 512 to 512 channels to 36 MiB and holds them twice in the pass of their gradient.
inline constexpr int64_t kLeastGpuWorkspace = int64_t{32} << 20, kLeastCpuWorkspace = int64_t{1} << 20,
                         kMostCpuWorkspace = int64_t{32} << 20, kMostWinogradWorkspace = int64_t{160} << 20;
/// For GPUs whose cuDNN cannot be asked.
inline constexpr int64_t kUnaskedGpuWorkspace = int64_t{256} << 20;

/// "phase backward of layer features.3".
std::string describe_peak(const DevicePlan& plan);

/// Plans a workload without touching the devices (DeviceGroup::planned() will do). throws ConfigError, ShapeError.
std::vector<DevicePlan> plan_memory(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                    const Workload& workload, PlanDetail detail = PlanDetail::peaks);

/// EngineConfig::workspace_bytes, or without it what plan_memory() makes it on devices with unlimited memory.
int64_t full_workspace_bytes(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                             const Workload& workload);

/// Adds what the libraries of this machine's processor answer for a workload on CPU devices.
void record_workspaces(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                       const Workload& workload, WorkspaceRecord& record);

/// Writes what the engine issues for the workload, with each block where the plans place it, for tools/check_schedule
/// (docs/schedule.md). throws ConfigError if `devices` have no order checker (DeviceGroupOptions::check_order).
void write_schedule(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                    const Workload& workload, const std::vector<DevicePlan>& plans, std::ostream& out);

}  // namespace vitrine
