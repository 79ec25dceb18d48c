// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "nn/parallel/planned_batches.h"
#include "nn/parallel/replicas/replica_group.h"
#include "runtime/memory/pool_placement.h"

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

/// A micro-batch whose samples are in the devices' memory, or on their way there.
struct StagedBatch {
  SectionKey section{};                         // of the pools: its work allocates there
  int64_t position = 0;                         // in its step
  int slot = 0;                                 // of each device's staging slots: the one that it fills
  std::optional<int64_t> augmented_epoch = {};  // if its images are augmented
  bool awaited = false;                         // the compute streams have waited for it
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

  /// Begins a step or evaluation with a section of its own. samples: of the global batch
  void begin(SectionKind kind, int64_t samples);
  /// Micro-batches of the step or evaluation so far: the position of the next one.
  int64_t next_position() const { return next_position_; }
  /// Brings a micro-batch to the devices: `staging` is its way there, `loss_at` says which devices need labels.
  StagedBatch stage(const HostBatch& batch, const MicroBatch& micro_batch, Staging staging, LossAt loss_at);
  /// Begins a micro-batch of `batch`, and leaves it to the caller to fill the slots on the compute streams.
  StagedBatch stage_on_compute(const HostBatch& batch, const MicroBatch& micro_batch);
  /// Makes the replica's compute stream wait until the slot is filled.
  void wait(const StagedBatch& staged, Replica& r) { r.compute().wait(*slot(staged, r).staged, "stage"); }
  /// Turns the images of the replica's slot into the model's input. In training forward() calls it.
  void prepare_input(const StagedBatch& staged, Replica& r);

  const StagingSlot& slot(const StagedBatch& staged, const Replica& r) { return slot(staged.slot, r); }
  /// The images that the replica's device holds.
  const Tensor& resident_images(const Replica& r) { return input_of(r).resident_images; }
  /// The labels of `rows` in the replica's slot become its targets.
  void set_targets(const StagedBatch& staged, Replica& r, const RowRange& rows);

  const ImageForm& input_form() const { return input_form_; }

 private:
  /// What one device holds.
  struct DeviceInput {
    Tensor resident_images;  // (count, h, w, C) u8; empty where the device holds none
    std::array<StagingSlot, 2> slots;
  };
  void make_events();
  void begin_section(const SectionKey& section);
  /// Begins the section of a micro-batch: its blocks are placed together.
  ///   releases_slots  the copy streams fill slots, after the work that reads them now
  StagedBatch begin_micro_batch(const HostBatch& batch, const MicroBatch& next, bool releases_slots);
  /// Exact mode: which leaves of the next micro-batch the replica computes.
  void begin_leaves(Replica& r, const MicroBatch& next);
  DeviceInput& input_of(const Replica& r) { return inputs_[static_cast<size_t>(r.ordinal())]; }
  StagingSlot& slot(int number, const Replica& r) { return input_of(r).slots[static_cast<size_t>(number)]; }
  /// Waits until the replica's staging slot may be overwritten.
  void wait_for_slot(const StagedBatch& staged, Replica& r);
  /// Copies rows of the micro-batch, which begins at `first_row` of the host's batch, or gathers their images from
  /// those that the device holds.
  void stage_from_host(const StagedBatch& staged, Replica& r, const HostBatch& batch, int64_t first_row,
                       const RowRange& rows, LossAt loss_at);
  /// Copies the same rows from device 0, which has staged all of them.
  void stage_from_device0(const StagedBatch& staged, Replica& r, const RowRange& rows, LossAt loss_at);

  const EngineSetup& setup_;
  ReplicaGroup& replicas_;
  const ImageForm input_form_;  // of the model's input; empty: as the images are
  std::vector<DeviceInput> inputs_;
  SectionKind kind_ = kTraining;
  int64_t batch_samples_ = 0, next_position_ = 0;  // of the step or evaluation
  int slot_ = 0, training_slot_ = 0;               // of the latest micro-batch, and of the latest one in training
};

}  // namespace vitrine
