// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/step_control.h"
#include "nn/parallel/data_parallel.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/process_part.h"
#include "runtime/host_buffer.h"

/// Private to nn/parallel.
namespace vitrine {

// What the host reads of a step: its tail (totals and votes), its control, the norms of the reduction's error.
inline constexpr int64_t kControlEnd = DataParallel::kTail + StepControl::kCount;
inline constexpr int64_t kReductionErrors = 2;
inline constexpr int64_t kRecord = kControlEnd + kReductionErrors;

Totals totals_from(const float* values);
/// Samples of each device of all processes in an evaluation batch.
std::vector<int64_t> evaluation_sizes(const EngineConfig& config, int64_t samples, int world_size);

/// The largest numbers of samples in the batches that are planned for.
DataParallel::Capacity capacity_for(const EngineConfig& config, const Workload& workload, const DeviceGroup& devices);

struct Engine::State {
  struct Issued {
    int slot;
    std::shared_ptr<void> hold;
    bool first = false;    // of the engine
    bool watched = false;  // overflows were looked for in the outputs
  };

  State(const Model& m, DeviceGroup& d, EngineConfig c, Workload w) : model(m), devices(d), config(std::move(c)), workload(std::move(w)) {}

  static void walk(const Model& model, DeviceGroup& meta, const EngineConfig& config, const Workload& workload, const std::function<void()>& on_step);
  /// throws OutOfMemory before any device has given memory.
  void reserve();
  /// Bytes of its plan beyond a device's capacity; below 0 where it fits.
  int64_t lacks(int device) const;
  [[noreturn]] void throw_out_of_memory(const std::vector<int>& lacking) const;
  /// Waits for the oldest step in flight and books its totals. throws what has failed.
  void finish_oldest();
  void throw_if_failed();
  void issue(const HostBatch& batch, const ProcessPart& part, int slot);
  View record(int slot) { return host_records.view({DataParallel::kStepSlots, kRecord}, DType::f32).rows(slot, slot + 1).reshape({kRecord}); }
  bool measures_reduction() const { return steps == 0 && devices.world_size() > 1 && config.precision.reduce_dtype != DType::f32; }
  View overflows(int slot) {
    const auto size = static_cast<int64_t>(devices.size());
    return host_overflows.view({DataParallel::kStepSlots, size}, DType::i32).rows(slot, slot + 1).reshape({size});
  }
  Totals step_totals(const Issued& issued);
  std::string first_overflow(const Issued& issued);
  /// Refuses what does not go with several processes, and makes sure that all of them plan the same. throws ConfigError.
  void agree_with_world();
  /// What this process's devices take of a batch of so many samples: found once for each size, for it takes all processes' sizes to tell.
  const ProcessPart& training_part(int64_t samples);
  const std::vector<int64_t>& evaluation_part(int64_t samples);
  /// Samples of the global batch that `batch` is this process's part of. throws ConfigError when it was not planned for, or has another size.
  int64_t global_samples(const HostBatch& batch, const std::vector<int64_t>& planned, const char* operation) const;
  /// throws ConfigError unless there are labels of this process's `rows` of a batch of `samples`, ShapeError unless each has the model's targets.
  void check_labels(const HostBatch& batch, int64_t samples, int64_t rows, const char* operation) const;
  void throw_if_diverged(const Totals& totals);
  void give_up_step();

  const Model& model;
  DeviceGroup& devices;
  EngineConfig config;
  Workload workload;
  BatchPlan full_batch;
  std::map<int64_t, ProcessPart> training_parts;             // by samples
  std::map<int64_t, std::vector<int64_t>> evaluation_parts;  // the same
  std::vector<DevicePlan> plans;
  HostBuffer host_records, host_overflows;
  std::unique_ptr<DataParallel> parts;
  std::deque<Issued> in_flight;
  std::vector<Totals> finished;
  int64_t steps = 0;
  std::set<int64_t> trained_sizes, evaluated_sizes;
  int skipped_in_row = 0;
  bool disturbed = false;  // an error cut a step short: the peak may differ from the plan
};

}  // namespace vitrine
