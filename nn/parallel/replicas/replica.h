// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/step_values.h"
#include "nn/parallel/engine_setup.h"
#include "nn/parallel/reduce/exact_reducer.h"
#include "nn/parallel/reduce/gathered_parameters.h"
#include "nn/parallel/reduce/shard.h"

/// Private to nn/parallel.
namespace vitrine {

/// Steps that may be in flight.
inline constexpr int kStepSlots = 2;

/// The model in a device's memory. An engine that only evaluates has no gradients and no transient buffers.
struct ModelMemory {
  // Of all parameters, or if ReducerContext::shards_masters(), of the copy if shards_parameters(), of the replica's
  // shard and the frozen parameters:
  Tensor parameters;         // flat, f32; empty where only a 16-bit copy is held
  Tensor half_parameters;    // flat, of the precision's dtype; empty in f32
  Tensor f32_copies;         // flat, f32: what layers see of parameters that stay f32, if masters are sharded
  Shard parameter_shard;     // what `parameters` has of all parameters
  Tensor gradients;          // flat, f32, of the trained parameters (ReducerContext::gradients), with the tail
  Tensor buffers;            // flat, f32: saved buffers; empty where the model has none
  Tensor transient_buffers;  // flat, f32: those of the latest micro-batch
  std::vector<View> parameter_views, gradient_views, buffer_views;
  bool has_gradients = false;  // this step has written them

  /// What layers see: the 16-bit copy, or in f32 the parameters.
  const Tensor& working_parameters() const { return half_parameters ? half_parameters : parameters; }
};

/// The optimizer's state of a replica that updates, for its shard of the trained parameters.
struct OptimizerMemory {
  Shard shard;            // one piece, all parameters, unless states are sharded
  Tensor state1, state2;  // momentum; or first and second moment
  Tensor updates_done;    // (1) i32
  Tensor average;         // of the parameters, f32; empty without EngineConfig::ema_decay
  Tensor stopped;  // f32 for each piece of the shard: StepControl::kStopped after its update; empty unless updates
                   // are made in backward and may stop training
};

/// Numbers of the current step.
struct StepScalars {
  Tensor memory;                   // i32: the next two
  View values;                     // (StepValues::kCount) i32: what a CUDA graph reads there
  View first_non_finite;           // (1) i32: the first value of a searched forward pass that is not finite
  ConstView captured_values = {};  // `values` while a CUDA graph is captured, else empty
};

/// What a device holds of the current micro-batch.
struct ReplicaBatch {
  int64_t samples = 0;
  int64_t first_sample = 0;         // in the global batch
  int64_t micro_batch_samples = 0;  // of all devices and processes
  Leaves leaves;                    // exact mode: of these samples
  Tensor input, targets;
  Saved saved;
  Tensor output;           // logits_shape() of its samples
  Tensor output_gradient;  // of the same shape
  Tensor gathered;         // on the output device: memory for all outputs, into which it has written its own
};

/// What replicas exchange because of layers with buffers: sums over a micro-batch, and buffers that replicas computed
/// alone. Collectives run on the communication stream, between two events, in the order in which all replicas issue
/// their layers; buckets of gradients share that stream, and come in the same order on all replicas too.
class BatchExchange final : public BatchSum {
 public:
  explicit BatchExchange(const ReducerContext& replica) : replica_(replica), overlap_(replica.device) {}

  /// requires ctx is the compute context
  void sum(ExecContext& ctx, const View& values) override;
  /// `values` become those of rank 0, for work that is queued on the compute stream afterwards.
  void broadcast(const View& values);
  /// Makes the events: before the first use and after a failure, while all streams are idle.
  void reset() { overlap_.reset(); }

 private:
  const ReducerContext& replica_;
  Overlap overlap_;
};

/// One device's copy of the model, and what it computes.
struct Replica {
  Replica(Device& device, const EngineSetup& setup);

  ExecContext& compute() { return device.compute(); }
  ExecContext& copy() { return device.copy(); }
  ExecContext& communication() { return device.communication(); }
  std::array<ExecContext*, 3> contexts() { return {&compute(), &copy(), &communication()}; }
  int ordinal() const { return device.ordinal(); }
  /// The gradients without the tail; if ReducerContext::shards_gradients(), its shard of them; empty with
  /// EngineConfig::update_in_backward.
  View parameter_gradients() const { return model.gradients.view().rows(0, reducer_context.gradient_elements()); }
  /// The reduced gradients of a piece of its shard.
  View gradients_of(const ShardPiece& piece) const {
    return reducer_context.shards_gradients() ? piece.of_states(parameter_gradients())
                                              : piece.of_parameters(parameter_gradients());
  }
  /// A piece of its shard in `flat`: its parameters, or their 16-bit copy.
  View parameters_of(const ShardPiece& piece, const View& flat) const {
    return is_sharded(flat) ? piece.of_states(flat) : piece.of_parameters(flat);
  }
  /// Whether its parameters, or their 16-bit copy, are its shard and the frozen parameters.
  bool is_sharded(const View& flat) const {
    return flat.dtype == DType::f32 ? reducer_context.shards_masters() : reducer_context.shards_parameters();
  }
  /// Totals of the loss and votes to stop: the tail of the flat gradients, which is reduced with them.
  View totals() const { return reducer_context.tail().rows(0, LossTotals::kCount); }
  View stop_votes() const { return reducer_context.tail().rows(LossTotals::kCount, kTailElements); }
  /// Whether it runs the optimizer.
  bool updates() const { return reducer != nullptr && reducer->updates(); }
  /// Casts the 16-bit copy after the parameters were set, where the replica has it and f32 parameters.
  void cast_parameters();
  /// Copies the parameters to their average, where the replica has one.
  void start_average();
  void forget_micro_batch();
  /// Makes all events again: an event that a failed stream recorded would fail its waiters. Requires idle streams.
  void make_events();

  Device& device;
  ModelMemory model;
  OptimizerMemory optimizer;
  StepScalars scalars;
  Tensor evaluate_totals;  // (1, LossTotals::kCount) f32; in exact mode a row for each leaf
  std::unique_ptr<LossScaler> scaler;
  ReducerContext reducer_context;
  /// Null where the model has no buffers, or there is one replica, or it only evaluates.
  std::unique_ptr<BatchExchange> exchange;
  std::unique_ptr<Reducer> reducer;
  std::unique_ptr<GatheredParameters> gathered;  // null unless it shards_states()
  ExactReducer* exact = nullptr;                 // the reducer, in exact mode
  ReplicaBatch batch;

 private:
  /// Allocates ModelMemory::f32_copies and sets their views.
  void copy_staying_f32(const FlatLayout& layout);
};

}  // namespace vitrine
