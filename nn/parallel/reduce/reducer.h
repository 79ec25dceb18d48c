// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <vitrine/kernels/step_control.h>
#include <vitrine/nn/parallel/engine_config.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/comm/communicator.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// One replica, as its Reducer sees it. The engine owns it and keeps it at one address; all views stay where they are
/// for the engine's lifetime.
///
/// Layers run on device.compute(); collectives belong on device.communication(), so that they overlap with backward.
/// The two streams are ordered by events only (Stream::make_event, ExecContext::record and wait).
struct ReducerContext {
  Device& device;
  const EngineConfig& config;
  const FlatLayout& layout;
  int rank;        // of this replica among those of all processes
  int world_size;  // replicas of all processes; 1: there is nothing to reduce with
  /// (layout.total_elements()) f32: the gradients of all parameters in the order in which backward finishes them, then
  /// the tail: totals of the loss. If shards_gradients(): its shard of them, then the tail; with
  /// EngineConfig::update_in_backward only the tail.
  View gradients = {};

  // Set once the Reducer exists:
  /// (layout.parameter_elements()) f32; empty where the replica holds only the 16-bit copy. If shards_masters(): its
  /// shard of them.
  View parameters = {};
  /// (layout.parameter_elements()) f16 or bf16: what layers see in mixed precision, else empty; the update writes it
  /// where the replica updates. If shards_parameters(): its shard of them.
  View half_parameters = {};
  View control = {};     // (StepControl::kCount) f32: decisions of the step
  View loss_scale = {};  // (LossScaleState::kCount) f32: state of the loss scaler; empty when losses are not scaled
  /// Set before the first step; another one after a failure. Null when world_size is 1.
  Communicator* communicator = nullptr;
  /// EngineConfig::update_in_backward: queues the update of the parameters from element `begin` on, for all
  /// `gradients`, a whole piece of the replica's shard.
  std::function<void(int64_t begin, const View& gradients)> update = {};

  View tail() const { return gradients.rows(gradient_elements(), gradients.shape[0]); }
  int64_t gradient_elements() const { return gradients.shape[0] - layout.tail_elements(); }
  // What the configuration shards among the replicas:
  bool shards_states() const { return config.shards(Sharding::optimizer, world_size); }
  bool shards_gradients() const { return config.shards(Sharding::gradients, world_size); }
  bool shards_parameters() const { return config.shards(Sharding::parameters, world_size); }
  bool shards_masters() const { return config.shards_masters(world_size); }
  bool has_gradient_buckets() const { return config.has_gradient_buckets(world_size); }
};

/// How one replica sums its gradients with those of the others: the part of a training step in which data-parallel
/// schemes differ.
///
/// The engine makes one Reducer for each replica and calls it once per step, in this order, from the thread that issues
/// the replica's work:
///
///     begin_step -> add, add, ... (while backward is issued) -> finish -> the update, if it updates() -> distribute
///
/// Every call issues work and returns; none waits for a device. All replicas make the same calls in the same order, so
/// a Reducer that issues its collectives from them keeps the order that Communicator requires. Planning runs the same
/// calls on meta devices: what a Reducer allocates and launches may depend on shapes and the step number, not on
/// values.
///
/// What a Reducer inherits is right where every replica gets the sums and makes the same update.
/// A custom Reducer (gradient compression, another topology) is set in EngineConfig::reducer;
/// docs/examples/gradient_compression.cpp is one.
class Reducer {
 public:
  virtual ~Reducer() = default;

  /// ReducerContext::has_gradient_buckets() only. The backward of a micro-batch begins, the first or the last of the
  /// step; each is reduced. With EngineConfig::update_in_backward it also reduces the tail, as finish() ensures.
  virtual void begin_backward(bool first, bool last) { static_cast<void>(first), static_cast<void>(last); }
  /// ReducerContext::has_gradient_buckets() only. Backward writes gradients of elements [0, elements) from now on:
  /// allocates their memory, and sets their views.
  ///   views  of all parameters in `all`
  virtual void begin_gradients(int64_t elements, const FlatLayout& all, std::vector<View>& views) {
    static_cast<void>(elements), static_cast<void>(all), static_cast<void>(views);
  }
  /// The tail and the gradients of elements [0, finished_elements) are final once the work queued on the compute stream
  /// so far is done. Called with ascending values while the last backward of a step is issued; finished_elements never
  /// lies inside a parameter.
  virtual void add(int64_t finished_elements) = 0;
  /// Everything is final. Ensures, where the replica updates(), that work which is queued on the compute stream
  /// afterwards sees the sums over all replicas in the gradients and in the tail.
  virtual void finish() = 0;

  /// Whether this replica updates the parameters: it holds the optimizer's state, and distribute() brings them to the
  /// others. Constant.
  virtual bool updates() const { return true; }
  /// A step begins.
  virtual void begin_step(int64_t /*step*/) {}
  /// After the update. Ensures that work which is queued on the compute stream afterwards sees the updated parameters,
  /// as f32 and as 16-bit copy where the replica holds them (with Scheme::shard its own shard; GatheredParameters
  /// brings the others), and the updated state of the loss scaler. Also called between steps, when averages of
  /// parameters take their place or give it back (Engine::AverageScope).
  virtual void distribute() {}
  /// Makes the events. Called before the first step and after a failure, while all streams are idle: events of a failed
  /// stream would fail their waiters.
  virtual void reset() {}
  /// The first elements whose squares this step's reduction has summed: work queued on the compute stream
  /// after finish() may read the sums. decide_step() does not read these elements again.
  virtual SquaredElements squared() const { return {}; }
  /// (2) f32 of this step: ||reduced gradient - f32 reduced gradient|| and ||f32 reduced gradient||; empty where that
  /// is not measured.
  virtual View error() const { return {}; }
};

/// The Reducer of EngineConfig::scheme: sums in buckets while backward runs (ReducerKind::allreduce), on every replica
/// or, with Scheme::shard, at their owners; or on device 0 after it (ReducerKind::gpu0).
std::unique_ptr<Reducer> make_reducer(const ReducerContext& replica);

/// make_reducer(), or EngineConfig::reducer where one is given. throws ConfigError when that returns null.
std::unique_ptr<Reducer> make_configured_reducer(const ReducerContext& replica);

}  // namespace vitrine
