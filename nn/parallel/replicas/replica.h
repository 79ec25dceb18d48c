// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/step_values.h"
#include "nn/buffer_layout.h"
#include "nn/model.h"
#include "nn/parallel/engine_config.h"
#include "nn/parallel/reduce/reducer.h"
#include "nn/parallel/replicas/batch_exchange.h"
#include "nn/parameter_store.h"
#include "runtime/device.h"

/// Private to nn/parallel.
namespace vitrine {

/// Elements after the gradients that are reduced with them: totals of the loss, and votes to stop.
inline constexpr int64_t kTailElements = LossTotals::kCount + 1;
/// Steps whose results the host may not have read yet.
inline constexpr int kStepSlots = 3;

/// Shape of the inputs of a batch, as they come from the host.
Shape staged_shape(const Model& model, const EngineConfig& config, int64_t samples);

/// Images and labels on their way to a device. There are two, so that the next micro-batch arrives while one is
/// computed.
struct StagingSlot {
  Tensor images;
  Tensor labels;
  Tensor samples;  // where images are augmented, or gathered from the device's: the index of each in the data set
  std::unique_ptr<Event> staged;  // copy stream: the slot is filled
  std::unique_ptr<Event> used;    // compute stream: the slot may be filled again
};

/// The memory and events of one device: a copy of the model, and what the device holds of the current micro-batch.
struct Replica {
  /// resident: images of EngineConfig::resident_images that the device holds. slice, labels: largest numbers of samples
  /// and of labels that its staging slots hold. rank: among the replicas of all processes
  Replica(Device& device, const Model& model, const EngineConfig& config, const FlatLayout& layout,
          const BufferLayout& buffer_layout, int64_t resident, int64_t slice, int64_t labels, int rank, int world_size);

  ExecContext& compute() { return device.compute(); }
  ExecContext& copy() { return device.copy(); }
  ExecContext& communication() { return device.communication(); }
  std::array<ExecContext*, 3> contexts() { return {&compute(), &copy(), &communication()}; }
  StagingSlot& slot(int64_t micro_batch) { return slots[static_cast<size_t>(micro_batch % 2)]; }
  /// Totals of the loss and votes to stop: the tail of the flat gradients, which is reduced with them.
  View tail() const { return reduction.tail(); }
  View totals() const { return tail().rows(0, LossTotals::kCount); }
  View stop_votes() const { return tail().rows(LossTotals::kCount, kTailElements); }
  /// What layers see: the 16-bit copy, or in f32 the parameters.
  const Tensor& working_parameters() const { return half_parameters ? half_parameters : parameters; }
  /// Whether it runs the optimizer.
  bool updates() const { return reducer != nullptr && reducer->updates(); }
  /// The gradients without the tail.
  View parameter_gradients() const { return gradients.view().rows(0, reduction.layout.parameter_elements()); }
  /// Casts the 16-bit copy after the parameters were set, where the replica has it and f32 parameters.
  void cast_parameters();
  /// Copies the parameters to their average, where the replica has one.
  void start_average();
  void forget_micro_batch();
  /// Makes all events again: an event that a failed stream recorded would fail its waiters. Requires idle streams.
  void make_events();

  Device& device;
  int ordinal;

  // An engine that only evaluates has parameters, or their 16-bit copy, and evaluation totals.
  Tensor parameters, gradients;  // flat, f32; no parameters where only a 16-bit copy is held
  Tensor half_parameters;        // flat, of the precision's dtype; empty in f32
  Tensor buffers;                // flat, f32: saved buffers; empty where the model has none
  Tensor transient_buffers;      // flat, f32: those of the latest micro-batch; only in training
  Tensor state1, state2;         // momentum; or first and second moment
  Tensor updates_done;           // (1) i32
  Tensor average;                // f32; empty where it does not update, and without EngineConfig::ema_decay
  Tensor evaluate_totals;        // (LossTotals::kCount) f32
  std::unique_ptr<LossScaler> scaler;
  Tensor step_scalars;    // i32: the next two
  View step_values;       // (StepValues::kCount) i32: what a CUDA graph reads there
  View first_non_finite;  // (1) i32: the first non-finite value of a forward pass that is searched, see
                          // Engine::State::describe_non_finite()
  std::vector<View> parameter_views, gradient_views, buffer_views;
  ReducerContext reduction;
  std::unique_ptr<BatchExchange>
      exchange;  // null where the model has no buffers, or there is one replica, or it only evaluates
  std::unique_ptr<Reducer> reducer;
  Tensor resident_images;  // (count, h, w, C) u8; empty where the device holds none
  std::array<StagingSlot, 2> slots;

  std::unique_ptr<Event> outputs_ready;    // compute: forward is done
  std::unique_ptr<Event> loss_ready;       // compute of the output device: the gradients of the outputs are computed
  std::unique_ptr<Event> outputs_read;     // compute of the output device: the outputs are gathered
  std::unique_ptr<Event> gradients_taken;  // compute: the gradients of its outputs have arrived
  std::array<std::unique_ptr<Event>, kStepSlots> step_done;

  // The current micro-batch.
  int64_t samples = 0;
  int64_t first_sample = 0;  // in the global batch
  Tensor input, targets;
  Tensor output;           // logits_shape() of its samples
  Tensor output_gradient;  // of the same shape
  Saved saved;
  bool has_gradients = false;  // this step has written them
};

}  // namespace vitrine
