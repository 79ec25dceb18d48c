// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/cross_entropy.h"
#include "nn/model.h"
#include "nn/parallel/data_parallel.h"
#include "nn/parallel/engine_config.h"
#include "nn/parameter_store.h"
#include "runtime/device.h"

/// Private to nn/parallel.
namespace vitrine {

/// Of the inputs of a batch, as they come from the host.
Shape staged_shape(const Model& model, const EngineConfig& config, int64_t samples);

/// Images and labels on their way to a device. Two of them, so that the next micro-batch arrives while one is worked on.
struct StagingSlot {
  Tensor images;
  Tensor labels;
  std::unique_ptr<Event> staged;  // copy stream: the slot is filled
  std::unique_ptr<Event> used;    // compute stream: the slot may be filled again
};

/// One device's copy of the model, and what it holds of the micro-batch under way.
struct Replica {
  /// slice, labels: largest numbers of samples and of labels that its staging takes. updates: it takes the optimizer step. reduces: it has peers
  Replica(Device& device, const Model& model, const EngineConfig& config, const FlatLayout& layout, int64_t slice, int64_t labels, bool updates,
          bool reduces);

  ExecContext& compute() { return device.compute(); }
  ExecContext& copy() { return device.copy(); }
  ExecContext& communication() { return device.communication(); }
  StagingSlot& slot(int64_t micro_batch) { return slots[static_cast<size_t>(micro_batch % 2)]; }
  /// Where loss and counts add up, and the votes to stop: the tail of the flat gradients, which is reduced with them.
  View tail() const { return tail_view; }
  View totals() const { return tail_view.rows(0, LossTotals::kCount); }
  View stop_votes() const { return tail_view.rows(LossTotals::kCount, DataParallel::kTail); }
  /// What layers see of the parameters: the 16-bit copy, or in f32 the parameters.
  const Tensor& working_parameters() const { return half_parameters ? half_parameters : parameters; }
  void forget_micro_batch();
  /// Events anew, never recorded: those that a failed stream recorded would fail whoever waits for them. Only while the streams are idle.
  void make_events();

  Device& device;
  int ordinal;

  // In an engine that only evaluates there are parameters, or their 16-bit copy, and evaluation totals.
  Tensor parameters, gradients;  // flat, f32; no parameters where only a 16-bit copy is held
  Tensor half_parameters;        // flat, of the precision's dtype; empty in f32
  Tensor packed_gradients;       // flat, of the dtype that gradients travel in; empty when that is f32
  Tensor state1, state2;         // momentum; or first and second moment
  Tensor updates_done;           // (1) i32
  Tensor evaluate_totals;        // (LossTotals::kCount) f32
  Tensor reduction_error;        // (2) f32, see DataParallel::read_reduction_error
  std::unique_ptr<LossScaler> scaler;
  Tensor overflowed;  // (1) i32: what was the first that is not finite in a step that is watched, see DataParallel::watch_for_non_finite
  std::vector<View> parameter_views, gradient_views;
  View tail_view;
  std::array<StagingSlot, 2> slots;

  std::unique_ptr<Event> outputs_ready;    // compute: forward is done
  std::unique_ptr<Event> loss_ready;       // compute of the output device: gradients of the outputs are there
  std::unique_ptr<Event> outputs_read;     // compute of the output device: the outputs are gathered
  std::unique_ptr<Event> gradients_taken;  // compute: the gradients of its outputs came back
  std::unique_ptr<Event> gradients_ready;  // compute, before a reduction
  std::unique_ptr<Event> reduced;          // communication
  std::unique_ptr<Event> updated;          // compute
  std::unique_ptr<Event> received;         // communication: parameters came
  std::array<std::unique_ptr<Event>, DataParallel::kStepSlots> step_done;

  // The micro-batch under way.
  int64_t samples = 0;
  int64_t first_sample = 0;  // in the global batch
  Tensor input, targets;
  Saved saved;
  bool has_gradients = false;  // since the step began
  size_t next_bucket = 0;
};

}  // namespace vitrine
