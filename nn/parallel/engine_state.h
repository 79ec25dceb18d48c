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

StepResult totals_from(const float* values);
/// Samples of each device of all processes in an evaluation batch.
std::vector<int64_t> evaluation_sizes(const EngineConfig& config, int64_t samples, int world_size);

/// The largest numbers of samples in the batches that are planned for.
DataParallel::Capacity capacity_for(const EngineConfig& config, const Workload& workload, const DeviceGroup& devices);

struct Engine::State {
  struct Issued {
    int slot;
    HostBatch batch;
    int64_t samples = 0;  // of the global batch
    int64_t step = 0;
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
  /// All micro-batches forward and backward.
  void issue_micro_batches(const HostBatch& batch, const ProcessPart& part);
  View record(int slot) { return host_records.view({DataParallel::kStepSlots, kRecord}, DType::f32).rows(slot, slot + 1).reshape({kRecord}); }
  bool measures_reduction() const { return steps == 0 && devices.world_size() > 1 && config.precision.reduce_dtype != DType::f32; }
  StepResult step_result(const Issued& issued);
  /// Runs a step's batch once more, without a reduction or an update, and returns what is not finite first on the devices of all processes, in
  /// forward's order; empty when all outputs are finite.
  std::string find_first_non_finite(const Issued& issued);
  /// A step has stopped training on the devices.
  [[noreturn]] void stop_training(const Issued& issued, StepResult& totals);
  /// Refuses what does not go with several processes, and makes sure that all of them plan the same. throws ConfigError.
  void agree_with_processes();
  /// What this process's devices take of a batch of so many samples: found once for each size, for it takes all processes' sizes to tell.
  const ProcessPart& training_part(int64_t samples);
  const std::vector<int64_t>& evaluation_part(int64_t samples);
  /// Samples of the global batch that `batch` is this process's part of. throws ConfigError when it was not planned for, or has another size.
  int64_t global_samples(const HostBatch& batch, const std::vector<int64_t>& planned, const char* operation) const;
  /// throws ConfigError unless there are labels of this process's `rows` of a batch of `samples`; ShapeError unless each has the model's targets, and
  /// the inputs are as the configuration says.
  void check_batch(const HostBatch& batch, int64_t samples, int64_t rows, const char* operation) const;
  void throw_if_diverged(const StepResult& totals);
  void give_up_step();

  const Model& model;
  DeviceGroup& devices;
  EngineConfig config;
  Workload workload;
  BatchPlan full_batch;
  std::map<int64_t, ProcessPart> training_parts;             // by samples
  std::map<int64_t, std::vector<int64_t>> evaluation_parts;  // the same
  std::vector<DevicePlan> plans;
  HostBuffer host_records;
  std::deque<Issued> in_flight;  // outlives the parts, whose destructor waits for the devices: they may still read these batches
  std::unique_ptr<DataParallel> parts;
  std::vector<StepResult> finished;
  int64_t steps = 0;
  std::set<int64_t> trained_sizes, evaluated_sizes;
  int skipped_in_row = 0;
  bool disturbed = false;  // an error cut a step short: the peak may differ from the plan
};

}  // namespace vitrine
