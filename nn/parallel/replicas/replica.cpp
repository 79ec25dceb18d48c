// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/replicas/replica.h"

#include <algorithm>
#include <utility>

#include "kernels/cast.h"
#include "nn/parallel/settings.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/trace/communication_table.h"

namespace vitrine {

Replica::Replica(Device& owner, const EngineSetup& setup)
    : device(owner),
      reducer_context{owner, setup.config, setup.trained, setup.devices.first_rank() + owner.ordinal(),
                      setup.devices.world_size()} {
  const EngineConfig& config = setup.config;
  const FlatLayout& layout = setup.layout;
  ExecContext& ctx = compute();
  const PhaseScope phase(ctx, Phase::setup);
  const auto allocate = [&](int64_t elements, DType dtype, Category category, const char* name) {
    Tensor t = ctx.allocate({elements}, dtype, category, name);
    zero(ctx, t);
    return t;
  };
  const Precision& precision = config.precision;
  const bool gathers = reducer_context.shards_parameters();
  const int64_t all = layout.parameter_elements(), all_trained = setup.trained.parameter_elements();
  model.parameter_shard =
      reducer_context.shards_masters() ? make_shard(reducer_context, nullptr) : Shard{{.end = all_trained}};
  const int64_t trained = elements_of(model.parameter_shard), elements = trained + all - all_trained;
  if (all > all_trained) model.parameter_shard.push_back({all_trained, all, trained});
  if (!config.forward_only) {
    const bool in_buckets = reducer_context.has_gradient_buckets();
    const int64_t reduced = config.update_in_backward ? 0
                            : in_buckets              ? elements_of(make_shard(reducer_context, nullptr))
                                                      : setup.trained.parameter_elements();
    model.gradients = allocate(reduced + setup.trained.tail_elements(), DType::f32, Category::gradients, "gradients");
    model.gradient_views =
        in_buckets ? std::vector<View>(layout.specs().size()) : layout.gradient_views(model.gradients);
    reducer_context.gradients = model.gradients;
    if (config.exact()) {
      auto made = std::make_unique<ExactReducer>(reducer_context, setup.leaf_plans);
      exact = made.get();
      reducer = std::move(made);
    } else {
      reducer = make_configured_reducer(reducer_context);
    }
    scaler = std::make_unique<LossScaler>(ctx, precision.loss_scaling);
    reducer_context.loss_scale = scaler->state();
    scalars.memory = allocate(StepValues::kCount + 1, DType::i32, Category::staging, "step scalars");
    scalars.values = scalars.memory.view().rows(0, StepValues::kCount);
    scalars.first_non_finite = scalars.memory.view().rows(StepValues::kCount, StepValues::kCount + 1);
  }
  if (!precision.mixed() || updates() || layout.any_stays_f32())
    model.parameters = allocate(elements, DType::f32, Category::parameters, "parameters");
  if (precision.mixed())
    model.half_parameters =
        allocate(gathers ? elements : all, precision.compute, Category::parameters, "parameter 16-bit copy");
  if (gathers) {
    model.parameter_views.resize(layout.specs().size());
    gathered = std::make_unique<GatheredParameters>(reducer_context, layout, model.parameter_views);
    for (int i = 0; i < layout.size(); ++i) {
      const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
      if (spec.trained) continue;
      const int64_t at = layout.offset(i) - all_trained + trained;
      const View flat = spec.stays_f32 ? model.parameters : model.working_parameters();
      model.parameter_views[static_cast<size_t>(i)] = flat.rows(at, at + spec.shape.numel()).reshape(spec.shape);
    }
  } else {
    if (reducer_context.shards_masters()) {
      model.parameter_views = layout.views(model.half_parameters);
      if (layout.any_stays_f32()) copy_staying_f32(setup.layout);
    } else {
      model.parameter_views = layout.views(model.working_parameters(), model.parameters);
    }
    if (reducer_context.shards_states() && !config.forward_only)
      gathered = std::make_unique<GatheredParameters>(reducer_context, layout, model.parameter_views);
  }
  const int64_t kept = setup.buffer_layout.saved().parameter_elements(),
                transient = setup.buffer_layout.transient().parameter_elements();
  if (kept > 0) model.buffers = allocate(kept, DType::f32, Category::parameters, "buffers");
  if (transient > 0 && !config.forward_only)
    model.transient_buffers = allocate(transient, DType::f32, Category::activations, "batch statistics");
  model.buffer_views = setup.buffer_layout.views(model.buffers, model.transient_buffers);
  if (!model.buffer_views.empty() && reducer_context.world_size > 1 && !config.forward_only)
    exchange = std::make_unique<BatchExchange>(reducer_context);
  if (model.parameters) reducer_context.parameters = model.parameters.view().rows(0, trained);
  if (model.half_parameters)
    reducer_context.half_parameters = model.half_parameters.view().rows(0, gathers ? trained : all_trained);
  if (updates()) {
    const int states = config.optimizer.state_count();
    optimizer.shard = make_shard(reducer_context, setup.update_ranges);
    const int64_t owned = elements_of(optimizer.shard);
    const auto state = [&](const char* name) { return allocate(owned, DType::f32, Category::optimizer, name); };
    if (states > 0) optimizer.state1 = state(states == 1 ? "momentum" : "exp_avg");
    if (states > 1) optimizer.state2 = state("exp_avg_sq");
    optimizer.updates_done = allocate(1, DType::i32, Category::optimizer, "step");
    if (config.ema_decay > 0.0) optimizer.average = state("parameter averages");
    if (config.update_in_backward && config.non_finite() == NonFinite::stop)
      optimizer.stopped = allocate(static_cast<int64_t>(optimizer.shard.size()), DType::f32, Category::staging,
                                   "whether updates stopped");
  }
  const int64_t parts = std::max(1, config.scheme.split.leaves);
  evaluate_totals = allocate(parts * LossTotals::kCount, DType::f32, Category::staging, "evaluation totals")
                        .reshape({parts, LossTotals::kCount});
  ctx.reserve_workspace(config.workspace_bytes.value(), settings::kWorkspaceBytes);
  make_events();
}

void Replica::copy_staying_f32(const FlatLayout& layout) {
  const FlatLayout copied = layout.staying_f32();
  model.f32_copies =
      compute().allocate({copied.parameter_elements()}, DType::f32, Category::parameters, "parameters that stay f32");
  zero(compute(), model.f32_copies);
  const std::vector<View> views = copied.views(model.f32_copies);
  for (size_t i = 0, next = 0; i < layout.specs().size(); ++i) {
    if (layout.specs()[i].stays_f32) model.parameter_views[i] = views[next++];
  }
}

void Replica::make_events() {
  if (reducer) reducer->reset();
  if (exchange) exchange->reset();
  if (gathered) gathered->reset();
}

void Replica::cast_parameters() {
  if (!model.half_parameters || !model.parameters) return;
  const PhaseScope phase(compute(), Phase::cast);
  for (const ShardPiece& piece : model.parameter_shard)
    cast(compute(), parameters_of(piece, model.parameters), parameters_of(piece, model.half_parameters));
}

void Replica::start_average() {
  if (!optimizer.average) return;
  const PhaseScope phase(compute(), Phase::replicate);
  for (const ShardPiece& piece : optimizer.shard)
    vitrine::copy(compute(), parameters_of(piece, reducer_context.parameters), piece.of_states(optimizer.average));
}

void Replica::forget_micro_batch() {
  ReplicaBatch next;
  next.samples = batch.samples;
  next.first_sample = batch.first_sample;
  next.micro_batch_samples = batch.micro_batch_samples;
  batch = std::move(next);
  if (gathered) gathered->release();
}

void BatchExchange::sum(ExecContext& ctx, const View& values) {
  VITRINE_ASSERT(&ctx == &replica_.device.compute(), "layers run on the compute stream");
  overlap_.start(Phase::reduce, kBatchStatistics, "compute",
                 [&](ExecContext& communication) { replica_.communicator->all_reduce(communication, values); });
  overlap_.join(kBatchStatistics);
}

void BatchExchange::broadcast(const View& values) {
  overlap_.start(Phase::broadcast, "buffers", "compute",
                 [&](ExecContext& communication) { replica_.communicator->broadcast(communication, values, 0); });
  overlap_.join("buffers");
}

}  // namespace vitrine
