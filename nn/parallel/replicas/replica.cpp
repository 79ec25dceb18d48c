// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/replicas/replica.h"

#include "kernels/cast.h"
#include "nn/parallel/settings.h"
#include "runtime/copy.h"

namespace vitrine {

Shape staged_shape(const Model& model, const EngineConfig& config, int64_t samples) {
  if (config.image_dtype == DType::f32) return model.input_shape(samples);
  return {samples, config.image_height, config.image_width, model.channels};
}

Replica::Replica(Device& owner, const Model& model, const EngineConfig& config, const FlatLayout& layout,
                 const BufferLayout& buffer_layout, int64_t resident, int64_t slice, int64_t labels, int rank,
                 int world_size)
    : device(owner), ordinal(owner.ordinal()), reduction{owner, config, layout, rank, world_size} {
  ExecContext& ctx = compute();
  const PhaseScope setup(ctx, Phase::setup);
  const auto allocate = [&](int64_t elements, DType dtype, Category category, const char* name) {
    Tensor t = ctx.allocate({elements}, dtype, category, name);
    zero(ctx, t);
    return t;
  };
  const Precision& precision = config.precision;
  const int64_t elements = layout.parameter_elements();
  if (!config.forward_only) {
    gradients = allocate(layout.total_elements(), DType::f32, Category::gradients, "gradients");
    gradient_views = layout.views(gradients);
    reduction.gradients = gradients;
    reducer = make_configured_reducer(reduction);
    scaler = std::make_unique<LossScaler>(ctx, precision.loss_scaling);
    reduction.loss_scale = scaler->state();
    step_scalars = allocate(StepValues::kCount + 1, DType::i32, Category::staging, "step scalars");
    step_values = step_scalars.view().rows(0, StepValues::kCount);
    first_non_finite = step_scalars.view().rows(StepValues::kCount, StepValues::kCount + 1);
  }
  if (!precision.mixed() || updates() || layout.any_stays_f32() ||
      (!config.forward_only && precision.broadcasts_masters)) {
    parameters = allocate(elements, DType::f32, Category::parameters, "parameters");
  }
  if (precision.mixed())
    half_parameters = allocate(elements, precision.compute, Category::parameters, "parameter 16-bit copy");
  parameter_views = layout.views(working_parameters(), parameters);
  const int64_t kept = buffer_layout.saved().parameter_elements(),
                transient = buffer_layout.transient().parameter_elements();
  if (kept > 0) buffers = allocate(kept, DType::f32, Category::parameters, "buffers");
  if (transient > 0 && !config.forward_only) {
    transient_buffers = allocate(transient, DType::f32, Category::activations, "batch statistics");
  }
  buffer_views = buffer_layout.views(buffers, transient_buffers);
  if (!buffer_views.empty() && world_size > 1 && !config.forward_only)
    exchange = std::make_unique<BatchExchange>(reduction);
  reduction.parameters = parameters;
  reduction.half_parameters = half_parameters;
  if (updates()) {
    const int states = config.optimizer.state_count();
    if (states > 0) state1 = allocate(elements, DType::f32, Category::optimizer, states == 1 ? "momentum" : "exp_avg");
    if (states > 1) state2 = allocate(elements, DType::f32, Category::optimizer, "exp_avg_sq");
    updates_done = allocate(1, DType::i32, Category::optimizer, "step");
    if (config.ema_decay > 0.0) average = allocate(elements, DType::f32, Category::optimizer, "parameter averages");
  }
  evaluate_totals = allocate(LossTotals::kCount, DType::f32, Category::staging, "evaluation totals");
  ctx.reserve_workspace(config.workspace_bytes.value(), settings::kWorkspaceBytes);

  const PhaseScope copy_setup(copy(), Phase::setup);
  if (resident > 0) {
    resident_images = copy().allocate(staged_shape(model, config, resident), config.image_dtype, Category::dataset,
                                      "training images");
  }
  for (StagingSlot& s : slots) {
    s.images = copy().allocate(staged_shape(model, config, slice), config.image_dtype, Category::staging, "images");
    s.labels = copy().allocate(model.label_shape(labels), DType::i32, Category::staging, "labels");
    if (config.stages_sample_indices())
      s.samples = copy().allocate({slice}, DType::i32, Category::staging, "sample indices");
  }
  make_events();
}

void Replica::make_events() {
  Stream& stream = compute().stream();
  for (StagingSlot& s : slots) {
    s.staged = stream.make_event();
    s.used = stream.make_event();
  }
  for (auto* event : {&outputs_ready, &loss_ready, &outputs_read, &gradients_taken}) *event = stream.make_event();
  for (auto& event : step_done) event = stream.make_event();
  if (reducer) reducer->reset();
  if (exchange) exchange->reset();
}

void Replica::cast_parameters() {
  if (!half_parameters || !parameters) return;
  const PhaseScope phase(compute(), Phase::cast);
  cast(compute(), parameters, half_parameters);
}

void Replica::start_average() {
  if (!average) return;
  const PhaseScope phase(compute(), Phase::replicate);
  vitrine::copy(compute(), parameters, average);
}

void Replica::forget_micro_batch() {
  input = Tensor();
  targets = Tensor();
  saved = Saved();
  output = Tensor();
  output_gradient = Tensor();
}

}  // namespace vitrine
