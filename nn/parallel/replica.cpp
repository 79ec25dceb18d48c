// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/replica.h"

#include "runtime/copy.h"

namespace vitrine {

Shape staged_shape(const Model& model, const EngineConfig& config, int64_t samples) {
  if (config.image_dtype == DType::f32) return model.input_shape(samples);
  return {samples, config.image_height, config.image_width, model.channels};
}

Replica::Replica(Device& owner, const Model& model, const EngineConfig& config, const FlatLayout& layout, int64_t slice, int64_t labels, bool updates,
                 bool reduces)
    : device(owner), ordinal(owner.ordinal()) {
  ExecContext& ctx = compute();
  const PhaseScope setup(ctx, Phase::setup);
  const auto flat = [&](int64_t elements, Category category, const char* name) {
    Tensor t = ctx.allocate({elements}, DType::f32, category, name);
    zero(ctx, t);
    return t;
  };
  const Precision& precision = config.precision;
  const bool trains = !config.forward_only;
  const bool masters = !precision.mixed() || (trains && (updates || precision.broadcasts_masters));
  if (masters) parameters = flat(layout.parameter_elements(), Category::parameters, "parameters");
  if (precision.mixed()) {
    half_parameters = ctx.allocate({layout.parameter_elements()}, precision.compute, Category::parameters, "parameter 16-bit copy");
    zero(ctx, half_parameters);
  }
  parameter_views = layout.views(working_parameters());
  if (trains) {
    gradients = flat(layout.total_elements(), Category::gradients, "gradients");
    gradient_views = layout.views(gradients);
    tail_view = gradients.view().rows(layout.parameter_elements(), layout.total_elements());
  }
  if (updates) {
    const int states = config.optimizer.state_count();
    if (states > 0) state1 = flat(layout.parameter_elements(), Category::optimizer, states == 1 ? "momentum" : "exp_avg");
    if (states > 1) state2 = flat(layout.parameter_elements(), Category::optimizer, "exp_avg_sq");
    updates_done = ctx.allocate({1}, DType::i32, Category::optimizer, "step");
    zero(ctx, updates_done);
  }
  if (trains && reduces && precision.reduce_dtype != DType::f32) {
    packed_gradients = ctx.allocate({layout.parameter_elements()}, precision.reduce_dtype, Category::communication, "gradients to reduce");
    zero(ctx, packed_gradients);
    reduction_error = ctx.allocate({2}, DType::f32, Category::staging, "reduction error");
    zero(ctx, reduction_error);
  }
  if (trains) {
    scaler = std::make_unique<LossScaler>(ctx, precision.loss_scaling);
    overflowed = ctx.allocate({1}, DType::i32, Category::staging, "first overflow");
    zero(ctx, overflowed);
  }
  evaluate_totals = flat(LossTotals::kCount, Category::staging, "evaluation totals");
  ctx.reserve_workspace(config.workspace_bytes);

  const PhaseScope copy_setup(copy(), Phase::setup);
  for (StagingSlot& s : slots) {
    s.images = copy().allocate(staged_shape(model, config, slice), config.image_dtype, Category::staging, "images");
    s.labels = copy().allocate(model.label_shape(labels), DType::i32, Category::staging, "labels");
  }
  make_events();
}

void Replica::make_events() {
  Stream& stream = compute().stream();
  for (StagingSlot& s : slots) {
    s.staged = stream.make_event();
    s.used = stream.make_event();
  }
  for (auto* event : {&outputs_ready, &loss_ready, &outputs_read, &gradients_taken, &gradients_ready, &reduced, &updated, &received})
    *event = stream.make_event();
  for (auto& event : step_done) event = stream.make_event();
}

void Replica::forget_micro_batch() {
  input = Tensor();
  targets = Tensor();
  saved = Saved();
}

}  // namespace vitrine
