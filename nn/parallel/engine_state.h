// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/step_control.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/optional/step_graphs.h"
#include "nn/parallel/replicas/replica.h"
#include "nn/parallel/replicas/replica_threads.h"
#include "nn/sequential.h"
#include "runtime/comm/communicator.h"
#include "runtime/error.h"
#include "runtime/host_buffer.h"
#include "runtime/memory/section.h"

/// Private to nn/parallel.
namespace vitrine {

/// What the host reads of a step, f32: the tail (totals and votes), the control, the two norms of Reducer::error().
struct StepReadout {
  static constexpr int64_t kControl = kTailElements;
  static constexpr int64_t kReductionError = kControl + StepControl::kCount;
  static constexpr int64_t kCount = kReductionError + 2;
};

/// Loss and counts in `totals` (LossTotals::kCount).
StepResult result_from(const float* totals);

/// `count` values of f32, f16 or bf16 in host memory, as f32.
void widen_on_host(DType dtype, const void* values, int64_t count, float* wide);

/// The host reads what streams have written to its memory. throws OrderError where the order is checked and the host
/// has not waited for them.
void note_host_read(DeviceGroup& devices, const char* operation, const ConstView& memory);

struct Engine::State {
  struct Issued {
    int slot;
    HostBatch batch;
    int64_t samples = 0;  // of the global batch
    int64_t step = 0;
  };
  using Communicators = std::vector<std::unique_ptr<Communicator>>;

  State(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload);
  /// Waits for the devices.
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // engine.cpp: construction, steps in flight
  /// Allocates the replicas and opens the communicators.
  void make_replicas();
  /// Copies EngineConfig::resident_images to the devices that hold them; waits.
  void load_resident_images();
  /// Waits for all steps in flight and records their results. throws what has failed.
  State& drain();
  /// The same for the oldest one.
  void finish_oldest();
  /// Calls `issue`. When it throws, recovers and throws the root cause.
  void issue_or_recover(const std::function<void()>& issue);
  void wait_step_done(int slot);
  /// throws ConfigError in an engine that only evaluates.
  void require_training(const char* operation) const;
  /// What this process's devices take of a batch of `samples`: computed once for each size, because it takes the sizes
  /// of all processes.
  const ProcessPart& training_part(int64_t samples);
  const MicroBatch& evaluation_part(int64_t samples);
  /// Samples of the global batch that `batch` is this process's part of. throws ConfigError when it was not planned
  /// for.
  int64_t global_samples(const HostBatch& batch, const std::vector<int64_t>& planned, const char* operation) const;
  /// throws ConfigError unless there are labels of this process's `rows` of a batch of `samples`; ShapeError unless
  /// each has the model's targets, and the inputs match the configuration or are `from_dataset`.
  void check_batch(const HostBatch& batch, int64_t samples, int64_t rows, const char* operation,
                   bool from_dataset) const;
  /// Whether devices take the training batch's images from those that they hold.
  bool gathers(const HostBatch& batch) const { return !batch.images && config.resident_images.count > 0; }
  /// throws ConfigError when images are augmented or gathered and `batch` has no sample indices; ShapeError, DtypeError
  /// unless there is one for each row; ConfigError when an image that is gathered is not on the devices.
  void check_sample_indices(const HostBatch& batch, int64_t rows) const;
  /// What the host reads of the step in `slot`.
  View readout(int slot) {
    return readouts.view({kStepSlots, StepReadout::kCount}, DType::f32)
        .rows(slot, slot + 1)
        .reshape({StepReadout::kCount});
  }
  /// Copies the step's results from device 0 to readout(slot).
  void read_step(int slot);

  // engine_plan.cpp
  /// Runs the workload on meta devices: the first step and a steady one, with the next batch's images already there;
  /// then the other sizes. What the engine releases at the end is in sections of its own (kEnd).
  ///   on_step  called before each of the first two steps, and after them
  static void walk(const Model& model, DeviceGroup& meta, const EngineConfig& config, const Workload& workload,
                   const std::function<void()>& on_step);
  /// The plan of a configuration with workspace_bytes.
  static std::vector<DevicePlan> plan(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                      const Workload& workload, PlanDetail detail);
  /// Takes each device's slab, in which its pool follows the plan's placement. throws OutOfMemory before any device has
  /// given memory.
  void reserve();
  /// Bytes of its plan beyond a device's capacity; below 0 where it fits.
  int64_t lacks(int device) const;
  [[noreturn]] void throw_out_of_memory(const std::vector<int>& lacking) const;

  // engine_workspace.cpp
  /// What the workload would use of the workspace on the device that uses most, where `allowed_bytes` is the most.
  static WorkspaceNeed workspace_need(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                                      const Workload& workload, int64_t allowed_bytes);
  /// The plan of a configuration without workspace_bytes.
  static std::vector<DevicePlan> plan_with_workspace(const Model& model, const DeviceGroup& devices,
                                                     const EngineConfig& config, const Workload& workload,
                                                     PlanDetail detail);

  // autotune.cpp
  /// EngineConfig::autotune: gives the compute streams of all devices their tuned plans. The pools are reserved and
  /// empty.
  void tune_plans();
  /// Its search on one of rank 0's devices.
  TunedPlans search_plans(const std::vector<std::string>& operations, const std::string& kind);

  // engine_processes.cpp
  /// throws ConfigError unless the configuration works with several processes and all of them plan the same.
  void agree_with_processes();
  /// Returns a hash of each parameter, then of each saved buffer.
  std::vector<uint64_t> hashes(Replica& r);

  // evaluation.cpp
  /// Issues an evaluation batch: each device adds loss and counts to its evaluation totals.
  ///   samples  of the global batch
  void issue_evaluation(const HostBatch& batch, const MicroBatch& micro_batch, int64_t samples);
  /// Waits, and returns the totals of all devices; copies the outputs to `logits`, in batch order, unless that is null.
  StepResult read_evaluation(float* logits);

  // step_parts.cpp
  int size() const { return static_cast<int>(replicas.size()); }
  Replica& replica(int i) { return *replicas[static_cast<size_t>(i)]; }
  Replica& output_replica() { return replica(config.scheme.output_device); }
  int64_t nominal_targets() const { return config.batch_size * model.targets_per_sample; }
  /// Targets of the current micro-batch on the devices before `ordinal`.
  int64_t targets_before(int ordinal) const;
  /// samples  of the global batch
  void begin_step(int64_t step, int64_t samples);
  /// Begins the next part of a step or evaluation whose blocks are placed together: all of them up to the end of a
  /// micro-batch.
  void begin_section();
  /// Brings a micro-batch to the devices: `staging` is its way there, `loss_at` says which devices need labels.
  void stage(const HostBatch& batch, const MicroBatch& micro_batch, Staging staging, LossAt loss_at, bool training);
  /// Waits until the replica's staging slot may be overwritten.
  void wait_for_slot(Replica& r);
  /// Copies rows of the micro-batch, which begins at `first_row` of the host's batch; gathers the images of the samples
  /// on the device if they are `from_dataset`.
  void stage_from_host(Replica& r, const HostBatch& batch, int64_t first_row, const RowRange& rows, bool from_dataset,
                       LossAt loss_at);
  /// Copies the same rows from device 0, which has staged all of them.
  void stage_from_device0(Replica& r, const RowRange& rows, LossAt loss_at);
  void set_targets(Replica& r, const RowRange& rows);
  void begin_micro_batch(const MicroBatch& micro_batch);
  void prepare_input(Replica& r);
  void forward(bool training);
  Pass pass_of(const Replica& r, bool training) const;
  /// Whether the replica takes part in sums over the micro-batch even without samples.
  bool sums_over_batch(const Replica& r) const { return pass_of(r, true).batch_sum != nullptr; }
  /// BatchStatistics::local: all replicas take the saved buffers of rank 0.
  void share_buffers();
  void compute_loss(Replica& r, const Tensor& logits, const View& gradients, const View& totals);
  /// Sends the rows of the gradients of all outputs to the devices that computed the outputs.
  void scatter_gradients(const Tensor& gradients, int device);
  /// On the device that scattered them: frees the gradients of all outputs once all devices have taken their rows.
  void release_scattered_gradients(Replica& r);
  /// Runs backward over the replica's samples. Calls release_scattered_gradients() first.
  void run_backward(Replica& r, const Sequential::GradientsReady& gradients_ready);
  /// The same on a replica without samples, for which the others may wait: it takes part in the layers' sums over the
  /// micro-batch, and contributes zeros if the step `reduces` its gradients now.
  void run_backward_empty(Replica& r, bool reduces, const Sequential::GradientsReady& gradients_ready);
  /// Gradients that no sample has written are zero.
  void zero_unwritten_gradients(Replica& r);
  /// What decide_step() counts, so that run_optimizer() need not.
  UpdateCount update_count(const Replica& r) const;
  void run_optimizer(Replica& r);
  /// Exchanges parameters and averages on all devices.
  void exchange_averages();

  // step_results.cpp
  StepResult step_result(const Issued& issued);
  /// The first value of a forward pass that is not finite, as a search numbers it: parameters, the input, then the
  /// outputs of the model's parts.
  std::string describe_non_finite(int32_t found) const;
  /// Runs the forward passes of a step again and returns what is not finite first on the devices of all processes;
  /// empty when all outputs are finite.
  std::string find_first_non_finite(const Issued& issued);
  /// A step has stopped training on the devices.
  [[noreturn]] void stop_training(const Issued& issued, StepResult& result);
  void throw_if_diverged(const StepResult& result);

  // training_checkpoint.cpp
  /// A flat buffer of a replica that a checkpoint contains.
  struct FlatState {
    std::string name;
    View on_device;
  };
  /// Those of a replica that updates the parameters, in the order of TrainingState::flats.
  std::vector<FlatState> flat_states(Replica& r);
  /// The first replica of this process that runs the optimizer. throws UnsupportedError if none does.
  Replica& updating_replica(const char* operation);
  /// throws ConfigError unless the state has the flat buffers of this engine.
  void check_state(const TrainingState& state, const char* operation) const;
  /// Fills the optimizer's states and averages of all replicas; with several processes from rank 0's state.
  void set_optimizer_states(const TrainingState& state, int32_t updates);

  // parameters.cpp
  void set_parameters(std::span<const float> flat);
  /// Copies values in host memory to the replica's parameters, or to its 16-bit copy where it has no others.
  void set_replica(Replica& r, std::span<const float> flat);
  std::vector<float> read_flat(Replica& r, const View& flat);
  void set_buffers(const BufferValues& values);

  // recovery.cpp
  /// Calls `work` for every replica; an exception gets the device's name as prefix.
  template <class Work>
  void for_each(const Work& work) {
    for (auto& r : replicas) {
      try {
        work(*r);
      } catch (...) {
        rethrow_with_prefix(std::current_exception(), r->device.name() + ": ");
      }
    }
  }
  /// The same on a thread for each replica, all at once, where there are such threads; else in order. For work that
  /// touches no other replica. When it fails on one, aborts the collectives of the others and throws the root cause.
  void for_each_at_once(const std::function<void(Replica&)>& work);
  /// for_each_at_once() on the replicas that run the optimizer.
  void for_each_updating(const std::function<void(Replica&)>& work);
  void open_communicators();
  void close_communicators() noexcept;
  bool on_gpus() const { return devices[0].id().backend == Backend::cuda; }
  /// True when an operation has failed on some device.
  bool failed() const;
  /// True when a GPU is lost or the communicators are broken: issued work will not end by itself. A fault that a kernel
  /// raised is neither.
  bool is_stuck() const;
  void throw_if_failed();
  /// With several processes: reports a failure of this one to the others, unless they know or soon find another cause.
  void report_failure(const std::exception_ptr& error);
  /// Aborts pending collectives, waits for all devices, discards the steps in flight, and makes the replicas usable
  /// again. Returns the root cause with its device's name as prefix, or null when nothing had failed.
  ///   known  the reason to give up, if there is one; it is the root cause unless it is a mere consequence of another
  ///          failure
  /// With several processes a failure is final and reported to the others.
  std::exception_ptr recover(const std::exception_ptr& known = nullptr);
  /// Copies replica 0's running statistics to the others after an aborted step, in which only some may have updated
  /// theirs.
  void equalize_buffers();
  /// Opens aborted communicators again. Those of the caller and those with other processes cannot be opened again: they
  /// stay aborted, and calls throw their reason.
  void reopen_communicators();

  const Model& model;
  DeviceGroup& devices;
  EngineConfig config;
  Workload workload;
  FlatLayout layout;
  UpdateRanges update_ranges;  // of parameter groups; null without them
  BufferLayout buffer_layout;
  std::vector<PartRange> recomputed;  // segments of activation checkpointing
  ImageForm input_form;               // of the model's input; empty: as the images are
  bool gradient_over_output = false;  // the gradient of the outputs overwrites them

  BatchPlan full_batch;
  std::map<int64_t, ProcessPart> training_parts;   // by samples
  std::map<int64_t, MicroBatch> evaluation_parts;  // by samples
  std::vector<DevicePlan> plans;
  std::shared_ptr<const TunedPlans> tuned;
  AutotuneReport autotune_report;
  bool workspace_planned = false;  // config.workspace_bytes are the plan's
  HostBuffer readouts;
  std::deque<Issued>
      in_flight;  // outlives the replicas: until the destructor has waited, devices may still read these batches
  std::vector<std::unique_ptr<Replica>> replicas;
  std::unique_ptr<ReplicaThreads> threads;  // several GPUs only
  std::unique_ptr<StepGraphs> graphs;       // null: steps are issued, and why_no_graphs says why
  std::string why_no_graphs;
  std::shared_ptr<Communicators> communicators;
  std::vector<std::shared_ptr<Communicators>>
      retired;  // aborted ones: spans that have not been taken point to their names

  // Over the engine's life.
  int64_t steps = 0;
  int64_t first_step = 0;         // the first one of this engine: above 0 after load_state()
  std::vector<int64_t> counters;  // of buffer_layout, as of the last finished step
  std::vector<StepResult> finished;
  std::set<int64_t> trained_sizes, evaluated_sizes;
  int skipped_in_row = 0;
  bool disturbed = false;  // an error cut a step short: the peak may differ from the plan
  bool votes_to_stop = false;

  // The current step or evaluation.
  enum SectionKind : int64_t { kTraining, kEvaluation, kEnd };
  SectionKey section{kTraining, 0, 0};        // its kind, the samples of the global batch, and the sections begun in it
  const ProcessPart* current_part = nullptr;  // null: no step is being issued
  int64_t step = 0;
  bool searches_non_finite = false;
  bool averages_in_place = false;  // an AverageScope is open
  bool reduction_on = true;

  // The current micro-batch.
  int64_t micro_batch = 0;                 // its number, which decides its staging slot
  int64_t trained_micro_batches = 0;       // without those of evaluation
  int64_t replayed_micro_batch = 0;        // the last one for which replay_or_issue() was called
  std::optional<int64_t> augmented_epoch;  // its epoch, if its images are augmented
  int64_t micro_batch_samples = 0;         // of all devices and processes
  Tensor gathered;                         // all outputs, when the output device has written its own into it
  Tensor scattered;  // gradients of all outputs on the output device, until all devices have taken their rows
  int scattered_from = 0;
};

}  // namespace vitrine
