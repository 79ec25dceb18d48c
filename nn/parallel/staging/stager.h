// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "nn/parallel/replicas/replica_group.h"
#include "nn/parallel/staging/planned_batches.h"
#include "nn/parallel/staging/step_inputs.h"
#include "runtime/memory/section.h"

/// Private to nn/parallel.
namespace vitrine {

/// Images and labels on their way to a device. There are two, so that the next micro-batch arrives while one is
/// computed.
struct StagingSlot {
  Tensor images;
  Tensor labels;
  Tensor samples;  // where images are augmented, or gathered from the device's: the index of each in the data set
  std::unique_ptr<Event> staged;  // copy stream: the slot is filled
  std::unique_ptr<Event> used;    // compute stream: the slot may be filled again
  bool in_use = false;            // by work after `used`
};

/// How a micro-batch comes to the devices and becomes the model's input.
class Stager {
 public:
  /// What a SectionKey is about: a training batch, an evaluation batch, or the engine's end.
  enum SectionKind : int64_t { kTraining, kEvaluation, kEnd };

  /// Allocates the slots and the memory of EngineConfig::resident_images.
  Stager(const EngineSetup& setup, const PlannedBatches& batches, ReplicaGroup& replicas);
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;
  /// Copies EngineConfig::resident_images to the devices that hold them; waits.
  void load_resident_images();

  /// From here on prepare_input() begins the work of a training micro-batch by reading what differs from step to step,
  /// and gathers images that the device holds, on the compute stream: what comes after stage() can be captured.
  /// requires one device
  void stage_in_work();
  /// The work of the current micro-batch is issued again.
  void start_again() { begins_totals_ = true; }
  /// Null: stage_in_work() was not called.
  StepInputs* step_inputs() { return inputs_of_steps_.get(); }

  /// Begins a step or evaluation with a section of its own. samples: of the global batch
  void begin(SectionKind kind, int64_t samples);
  /// Brings a micro-batch to the devices: `staging` is its way there, `loss_at` says which devices need labels.
  void stage(const HostBatch& batch, const MicroBatch& micro_batch, Staging staging, LossAt loss_at);
  /// Turns the images of the replica's slot into the model's input. In training forward() calls it.
  void prepare_input(Replica& r);

  const ImageForm& input_form() const { return input_form_; }
  /// Of the current micro-batch's augmentation; 0 without one.
  int64_t epoch() const { return augmented_epoch_.value_or(0); }
  /// Samples of the current micro-batch of all devices and processes.
  int64_t micro_batch_samples() const { return micro_batch_samples_; }
  /// The section of the current micro-batch, which memory its work reads, and its position in the step. throws
  /// OrderError unless stage() was called since the last call: it begins the work that can be replayed.
  struct Place {
    SectionKey section;
    int64_t slot;  // a number for the staging slot, the memory of StepInputs and whether images are gathered
    int64_t position;
  };
  Place take_place();

 private:
  /// What one device holds.
  struct DeviceInput {
    Tensor resident_images;  // (count, h, w, C) u8; empty where the device holds none
    std::array<StagingSlot, 2> slots;
  };
  void make_events();
  /// Begins the next part of a step or evaluation whose blocks are placed together: all of them up to the end of a
  /// micro-batch.
  void begin_section();
  void begin_micro_batch(const MicroBatch& next);
  /// Exact mode: which leaves of the next micro-batch the replica computes.
  void begin_leaves(Replica& r, const MicroBatch& next);
  DeviceInput& input_of(const Replica& r) { return inputs_[static_cast<size_t>(r.ordinal())]; }
  /// The slot of the current micro-batch.
  StagingSlot& slot(const Replica& r) { return input_of(r).slots[static_cast<size_t>(micro_batch_ % 2)]; }
  /// Waits until the replica's staging slot may be overwritten.
  void wait_for_slot(Replica& r);
  /// Copies rows of the micro-batch, which begins at `first_row` of the host's batch, or gathers their images from
  /// those that the device holds.
  void stage_from_host(Replica& r, const HostBatch& batch, int64_t first_row, const RowRange& rows, LossAt loss_at);
  /// Copies the same rows from device 0, which has staged all of them.
  void stage_from_device0(Replica& r, const RowRange& rows, LossAt loss_at);
  void set_targets(Replica& r, const RowRange& rows);
  /// Copies what a micro-batch's work gathers by to StepInputs.
  void note_for_work(Replica& r, const HostBatch& batch, const MicroBatch& next);
  /// Reads StepInputs on the compute stream.
  void read_inputs(Replica& r);
  int64_t position() const { return section_[2] - 2; }  // section_ is the next one, and the step has one of its own

  const EngineSetup& setup_;
  ReplicaGroup& replicas_;
  ImageForm input_form_;  // of the model's input; empty: as the images are
  std::vector<DeviceInput> inputs_;
  std::unique_ptr<StepInputs> inputs_of_steps_;  // null: transfers have streams of their own
  bool reads_inputs_ = false;                    // the current micro-batch does, from inputs_of_steps_
  bool gathers_in_work_ = false;                 // and gathers its images
  bool begins_totals_ = false;                   // nothing of this step has
  SectionKey section_{kTraining, 0, 0};  // its kind, the samples of the global batch, and the sections begun in it
  int64_t micro_batch_ = 0;              // the current one's number, which decides its slot
  int64_t trained_micro_batches_ = 0;    // without those of evaluation
  int64_t placed_micro_batch_ = 0;       // the last one for which take_place() was called
  int64_t micro_batch_samples_ = 0;
  std::optional<int64_t> augmented_epoch_;  // of the current micro-batch, if its images are augmented
};

}  // namespace vitrine
