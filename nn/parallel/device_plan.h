// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <vitrine/kernels/workspace.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// What a layer (or, outside layers, a tensor) keeps in memory from its forward to its backward pass.
struct HeldBytes {
  std::string layer;
  int64_t bytes = 0;
};

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
  /// Activations at the end of the forward pass (of the micro-batch that holds most), in their order.
  std::vector<HeldBytes> held_activations;
  MemoryHistory history;  // of the setup, the first step and a steady one: a mark for each step
};

}  // namespace vitrine
