// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <vitrine/kernels/workspace.h>
#include <vitrine/nn/model.h>
#include <vitrine/nn/parallel/workload.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// What a layer (or, outside layers, a tensor) keeps in memory from its forward to its backward pass.
struct HeldBytes {
  std::string layer;
  int64_t bytes = 0;
};

/// What a plan contains: the peaks, or also what layers hold and how memory changes over a step.
enum class PlanDetail { peaks, layers };

/// The arena of each compute stream. A plan that sizes it asks the libraries for the best algorithms of the model's
/// convolutions and products, within the capacity of the device that has least room, and not below kLeastCpuWorkspace
/// or kLeastGpuWorkspace. In exact mode it asks for all leaves of the run, whichever devices compute them, and does not
/// shrink. A larger workspace changes no algorithm, up to what a plan can take: each operation chooses by its shapes.
struct WorkspacePlan {
  int64_t bytes = 0;
  int64_t least_bytes = 0;  // the least size, on devices with less memory; `bytes` if that was given or cannot shrink
  std::vector<WorkspaceShortage> shortages;  // what runs by another algorithm than the best, because the arena shrank
  Reason unknown;  // why cuDNN could not be asked, or what EngineConfig::workspace_record lacks
};
/// GPUs: what cuBLASLt's documentation recommends for compute capability 9.0. CPU devices get at most
/// kMostCpuWorkspace, or kMostWinogradWorkspace if convolutions may run by Winograd's algorithm, which transforms the
/// weights of 512 to 512 channels to 36 MiB and holds them twice in the pass of their gradient.
inline constexpr int64_t kLeastGpuWorkspace = int64_t{32} << 20, kLeastCpuWorkspace = int64_t{1} << 20,
                         kMostCpuWorkspace = int64_t{32} << 20, kMostWinogradWorkspace = int64_t{160} << 20;
/// For GPUs whose cuDNN cannot be asked.
inline constexpr int64_t kUnaskedGpuWorkspace = int64_t{256} << 20;

/// The plan of one device.
struct DevicePlan {
  int64_t peak_bytes = 0;
  BytesByCategory peak_by_category{};  // as in PoolStatistics
  Phase peak_phase = Phase::setup;
  std::string peak_layer;
  int64_t unplaced_peak_bytes = 0;                 // of the pool's allocator without the placement
  std::shared_ptr<const PoolPlacement> placement;  // where each block lies; devices with the same blocks share it
  WorkspacePlan workspace;                         // the same on all devices

  // With PlanDetail::layers:
  std::vector<HeldBytes>
      held;  // activations at the end of the forward pass (of the micro-batch that holds most), in their order
  MemoryHistory history;  // of the setup, the first step and a steady one: a mark for each step
};

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

/// The form in which the devices write the model's input (EngineConfig::input_packing); empty: as the images are.
ImageForm input_form(const Model& model, const DeviceGroup& devices, const EngineConfig& config);

}  // namespace vitrine
