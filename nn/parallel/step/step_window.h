// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/parallel/planned_batches.h"
#include "nn/parallel/replicas/replica_group.h"
#include "nn/parallel/step/step_result.h"
#include "runtime/host_buffer.h"

/// Private to nn/parallel.
namespace vitrine {

/// How far training has come, as of the last finished step.
struct TrainingProgress {
  int64_t steps = 0;       // issued
  int64_t first_step = 0;  // of this engine: above 0 after a state was loaded
  int skipped_in_row = 0;
  std::vector<int64_t> counters;  // of the buffer layout
};

/// Loss and counts in `totals` (LossTotals::kCount).
StepResult result_from(const float* totals);

/// The steps in flight, and what the host reads of them.
class StepWindow {
 public:
  /// A step that was issued.
  struct Issued {
    int slot = 0;
    HostBatch batch;
    int64_t samples = 0;  // of the global batch
    int64_t step = 0;
  };
  /// Returns what is not finite first in a step's forward passes; empty if all outputs are finite.
  using Search = std::function<std::string(const Issued& issued)>;

  StepWindow(const EngineSetup& setup, ReplicaGroup& replicas, const PlannedBatches& batches, Search search);
  StepWindow(const StepWindow&) = delete;
  StepWindow& operator=(const StepWindow&) = delete;

  /// Waits until another step may be issued, and returns its slot. throws what has failed.
  int free_slot();
  /// Issues copies of the step's results from device 0.
  void read_step(int slot);
  /// From here on read_step() is part of the work of a step, which may be captured: a kernel writes the results to the
  /// host's memory, and after them the step's number, for which the host waits. requires one device, and StepGraphs
  void read_in_work() { reads_in_work_ = true; }
  bool reads_in_work() const { return reads_in_work_; }
  /// The next step has been issued.
  void add(int slot, const HostBatch& batch, int64_t samples);
  /// Waits for all steps in flight and records their results, and makes the parameters of all replicas those of the
  /// last one (ReplicaGroup::finish_gathering). throws what has failed.
  void drain();
  /// The results that were recorded since the last call.
  std::vector<StepResult> take() { return std::exchange(finished_, {}); }
  TrainingProgress& progress() { return progress_; }

 private:
  /// Waits for the oldest step and records its result.
  void finish_oldest();
  /// Returns whether it has seen that the step's work has no error; otherwise the streams must be asked.
  bool wait_step_done(const Issued& issued);
  /// Waits for the events of step_done_, or until `arrived`, if that can be called. Returns whether it has.
  bool wait_for_event(int slot, const std::function<bool()>& arrived = {});
  void record_done(int slot);
  /// Where read_in_work() has the step's number written.
  int32_t& number_in(int slot) const;
  /// What the host reads of the step in `slot`.
  View readout(int slot) const;
  void read_by_kernel(Replica& r, int slot);
  StepResult step_result(const Issued& issued);
  /// What the host reads of OptimizerMemory::stopped.
  View stopped_updates(int slot, const Replica& replica) const;
  /// An update in backward has stopped training: the trained parameters that it and those before it have updated.
  std::string updated_before_stop(int slot);
  /// A step has stopped training on the devices.
  [[noreturn]] void stop_training(const Issued& issued, StepResult& result);
  void throw_if_diverged(const StepResult& result);
  void make_events();

  const EngineSetup& setup_;
  ReplicaGroup& replicas_;
  const PlannedBatches& batches_;
  const Search search_;
  HostBuffer readouts_, stopped_updates_;
  /// Of each replica's compute stream: the steps in the slots are done.
  std::vector<std::array<std::unique_ptr<Event>, kStepSlots>> step_done_;
  bool reads_in_work_ = false;
  std::deque<Issued> in_flight_;
  std::vector<StepResult> finished_;
  TrainingProgress progress_;
};

}  // namespace vitrine
