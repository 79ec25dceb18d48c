// SPDX-License-Identifier: Apache-2.0
// The parts of a training step on all devices, up to the gradient of the outputs. train_step.cpp puts them in order.
#include <numeric>
#include <utility>

#include "kernels/average.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/gather_rows.h"
#include "kernels/image.h"
#include "kernels/non_finite.h"
#include "kernels/optimizer.h"
#include "nn/parallel/engine_state.h"
#include "runtime/copy.h"

namespace vitrine {
namespace {

/// Copies rows of a micro-batch to the start of a tensor. first_row: where the micro-batch begins in `from`.
void copy_rows(ExecContext& ctx, const ConstView& from, int64_t first_row, const RowRange& rows, const Tensor& to) {
  if (rows.size() == 0) return;
  vitrine::copy(ctx, from.rows(first_row + rows.begin, first_row + rows.end), to.view().rows(0, rows.size()));
}

}  // namespace

void Engine::State::begin_section() {
  for (auto& r : replicas) r->device.pool().begin_section(section);
  ++section[2];
}

void Engine::State::begin_step(int64_t number, int64_t samples) {
  step = number;
  section = {kTraining, samples, 0};
  begin_section();
  for_each([&](Replica& r) {
    r.scaler->reset();
    r.reducer->begin_step(step);
    for (ExecContext* ctx : r.contexts()) ctx->set_step(step);
    r.compute().mark_step();
    r.has_gradients = false;
    const PhaseScope phase(r.compute(), Phase::loss);
    zero(r.compute(), r.tail());
    static constexpr float kVote = 1.0F;
    if (votes_to_stop && r.ordinal == 0)
      copy(r.compute(), ConstView(&kVote, {1}, DType::f32, DeviceId::host()), r.stop_votes());
    static constexpr int32_t kNone = -1;
    if (searches_non_finite)
      copy(r.compute(), ConstView(&kNone, {1}, DType::i32, DeviceId::host()), r.first_non_finite);
  });
}

void Engine::State::begin_micro_batch(const MicroBatch& next) {
  int64_t position = next.position;
  for (auto& r : replicas) {
    if (micro_batch > 0) r->compute().record(*r->slot(micro_batch).used);
    r->forget_micro_batch();
    r->samples = next.sizes[static_cast<size_t>(r->ordinal)];
    r->first_sample = position;
    position += r->samples;
  }
  gathered = Tensor();
  begin_section();
  ++micro_batch;
  // Training micro-batches alternate between the slots even if evaluations come in between: one process may evaluate
  // alone, and all ranks must launch graphs that read the same slot.
  if (section[0] == kTraining && micro_batch % 2 != ++trained_micro_batches % 2) ++micro_batch;
  micro_batch_samples = next.global_samples > 0 ? next.global_samples : next.samples();
}

const std::vector<MicroBatch>& Engine::micro_batches() const {
  return in_step("micro_batches").current_part->micro_batches;
}

void Engine::stage(const HostBatch& batch, const MicroBatch& micro_batch) {
  State& s = in_step("stage");
  s.stage(batch, micro_batch, s.config.scheme.staging, s.config.scheme.loss_at, true);
  s.for_each_at_once([&](Replica& r) { s.prepare_input(r); });
}

void Engine::State::stage(const HostBatch& batch, const MicroBatch& next, Staging staging, LossAt loss_at,
                          bool training) {
  begin_micro_batch(next);
  augmented_epoch = training && config.augments() ? std::optional(batch.epoch) : std::nullopt;
  const bool from_dataset = training && gathers(batch);
  const bool through_device0 = staging == Staging::device0;
  const RowRange all{0, next.samples()};
  int64_t before = 0;  // samples of earlier devices
  for_each([&](Replica& r) {
    const RowRange mine{before, before + r.samples};
    before = mine.end;
    const bool scatters = through_device0 && r.ordinal != 0;
    const PhaseScope phase(r.copy(), scatters ? Phase::scatter : Phase::stage);
    wait_for_slot(r);
    if (scatters) {
      stage_from_device0(r, mine, loss_at);
    } else {
      stage_from_host(r, batch, next.first_row, through_device0 ? all : mine, from_dataset, loss_at);
    }
    if (loss_at == LossAt::parallel) {
      set_targets(r, mine);
    } else if (r.ordinal == config.scheme.output_device) {
      copy_rows(r.copy(), batch.labels, next.first_row, all, r.slot(micro_batch).labels);
      set_targets(r, all);
    }
    r.copy().record(*r.slot(micro_batch).staged);
  });
}

void Engine::State::wait_for_slot(Replica& r) {
  ExecContext& ctx = r.copy();
  ctx.wait(*r.slot(micro_batch).used, "compute");
  if (config.scheme.staging != Staging::device0 || r.ordinal != 0) return;
  // Copies of an earlier micro-batch to the other devices may still read this slot.
  for (auto& other : replicas) ctx.wait(*other->slot(micro_batch).staged, "scatter");
}

void Engine::State::stage_from_host(Replica& r, const HostBatch& batch, int64_t first_row, const RowRange& rows,
                                    bool from_dataset, LossAt loss_at) {
  ExecContext& ctx = r.copy();
  const StagingSlot& slot = r.slot(micro_batch);
  if (augmented_epoch || from_dataset) copy_rows(ctx, batch.samples, first_row, rows, slot.samples);
  if (!from_dataset) {
    copy_rows(ctx, batch.images, first_row, rows, slot.images);
  } else if (rows.size() > 0) {
    gather_rows(ctx, r.resident_images, slot.samples.rows(0, rows.size()), slot.images.rows(0, rows.size()));
  }
  if (loss_at == LossAt::parallel) copy_rows(ctx, batch.labels, first_row, rows, slot.labels);
}

void Engine::State::stage_from_device0(Replica& r, const RowRange& rows, LossAt loss_at) {
  ExecContext& ctx = r.copy();
  const StagingSlot &from = replica(0).slot(micro_batch), &to = r.slot(micro_batch);
  ctx.wait(*from.staged, "stage on device 0");
  if (augmented_epoch) copy_rows(ctx, from.samples, 0, rows, to.samples);
  copy_rows(ctx, from.images, 0, rows, to.images);
  if (loss_at == LossAt::parallel) copy_rows(ctx, from.labels, 0, rows, to.labels);
}

void Engine::State::set_targets(Replica& r, const RowRange& rows) {
  if (rows.size() > 0)
    r.targets = r.slot(micro_batch).labels.rows(0, rows.size()).reshape({rows.size() * model.targets_per_sample});
}

void Engine::State::prepare_input(Replica& r) {
  ExecContext& ctx = r.compute();
  StagingSlot& slot = r.slot(micro_batch);
  if (r.samples == 0) {
    if (r.targets) ctx.wait(*slot.staged, "stage");
    return;
  }
  const PhaseScope phase(ctx, Phase::preprocess);
  ctx.wait(*slot.staged, "stage");
  const Tensor images = slot.images.rows(0, r.samples);
  const DType dtype = config.precision.compute;
  if (config.image_dtype == dtype) {
    r.input = images;
    return;
  }
  r.input = ctx.allocate(input_form ? input_form.packed_shape(r.samples) : model.input_shape(r.samples), dtype,
                         Category::activations, "input");
  if (config.image_dtype == DType::f32) {
    cast(ctx, images, r.input);
  } else if (augmented_epoch) {
    augment_normalize(ctx, config.augmentation, {config.seed, *augmented_epoch}, config.normalization, images,
                      slot.samples.rows(0, r.samples), r.input, input_form);
  } else {
    resize_normalize(ctx, config.normalization, images, r.input, input_form);
  }
}

int64_t Engine::State::targets_before(int ordinal) const {
  const auto add = [](int64_t sum, const std::unique_ptr<Replica>& r) { return sum + r->samples; };
  return model.targets_per_sample * std::accumulate(replicas.begin(), replicas.begin() + ordinal, int64_t{0}, add);
}

Pass Engine::State::pass_of(const Replica& r, bool training) const {
  Pass pass{training, config.seed, step, r.first_sample};
  pass.updates_buffers = !searches_non_finite;
  pass.input_form = input_form;
  if (training && graphs) pass.step_values = graphs->values_of_capture();
  if (training && r.exchange && config.batch_statistics == BatchStatistics::exact && micro_batch_samples > 0) {
    pass.batch_sum = r.exchange.get();
    pass.batch_samples = micro_batch_samples;
  }
  return pass;
}

void Engine::forward() { in_step("forward").forward(true); }

const Tensor& Engine::output(int device) const { return in_step("output").replica(device).output; }

void Engine::State::forward(bool training) {
  const bool gathers = training && config.scheme.loss_at == LossAt::gathered;
  for_each_at_once([&](Replica& r) {
    ExecContext& ctx = r.compute();
    const Pass pass = pass_of(r, training);
    if (r.samples == 0) {
      if (pass.batch_sum == nullptr) return;
      const PhaseScope phase(ctx, Phase::forward);
      model.net->forward_empty({ctx, model.input_shape(1), pass, r.buffer_views});
      return;
    }
    const PhaseScope phase(ctx, Phase::forward);
    const Tensor input = std::move(r.input);
    Sequential::OutputReady observe;
    if (training && searches_non_finite) {
      int32_t number = 0;
      for (const View& parameter : r.parameter_views) find_non_finite(ctx, parameter, number++, r.first_non_finite);
      find_non_finite(ctx, input, number++, r.first_non_finite);
      observe = [&r, number](int part, const Tensor& output) {
        find_non_finite(r.compute(), output, number + part, r.first_non_finite);
      };
    }
    const Shape logits = model.logits_shape(r.samples);
    if (gathers && &r == &output_replica()) {
      const int64_t before = targets_before(r.ordinal);
      gathered = ctx.allocate(model.logits_shape(targets_before(size()) / model.targets_per_sample),
                              config.precision.compute, Category::activations, "gathered outputs");
      r.output = gathered.rows(before, before + logits[0]);
    }
    r.saved =
        model.net->forward_from(ctx, r.parameter_views, input, r.output, pass, observe, recomputed, r.buffer_views);
    r.output = r.output.reshape(logits);
    if (!training) r.saved = Saved();
  });
}

Tensor Engine::gather_outputs(int device) {
  State& s = in_step("gather_outputs");
  Replica& target = s.replica(device);
  ExecContext& ctx = target.compute();
  const PhaseScope phase(ctx, Phase::gather);
  Tensor all;
  if (s.gathered && &target == &s.output_replica()) {
    all = std::exchange(s.gathered, {});
  } else {
    const int64_t samples = s.targets_before(s.size()) / s.model.targets_per_sample;
    all = ctx.allocate(s.model.logits_shape(samples), s.config.precision.compute, Category::activations,
                       "gathered outputs");
  }
  int64_t at = 0;
  for (auto& r : s.replicas) {
    if (r->samples == 0) continue;
    const Tensor rows = all.rows(at, at + r->output.shape()[0]);
    if (r.get() != &target) {
      r->compute().record(*r->outputs_ready);
      ctx.wait(*r->outputs_ready, "forward of another device");
    }
    if (r->output.view().data != rows.view().data) copy(ctx, r->output, rows);
    at += r->output.shape()[0];
  }
  ctx.record(*target.outputs_read);
  for (auto& r : s.replicas) {
    if (r->samples == 0 || r.get() == &target) continue;
    const PhaseScope gather_phase(r->compute(), Phase::gather);
    r->compute().wait(*target.outputs_read, "gather");
  }
  return all;
}

void Engine::State::scatter_gradients(const Tensor& gradients, int device) {
  Replica& source = replica(device);
  source.compute().record(*source.loss_ready);
  int64_t at = 0;
  for_each([&](Replica& r) {
    if (r.samples == 0) return;
    ExecContext& ctx = r.compute();
    const PhaseScope phase(ctx, Phase::scatter_grad);
    const Tensor rows = gradients.rows(at, at + r.output.shape()[0]);
    at += r.output.shape()[0];
    if (&r == &source) {
      r.output_gradient = rows;
      return;
    }
    r.output_gradient = gradient_over_output ? r.output
                                             : ctx.allocate(r.output.shape(), r.output.dtype(), Category::activations,
                                                            "gradient of outputs");
    ctx.wait(*source.loss_ready, "loss");
    copy(ctx, rows, r.output_gradient);
    ctx.record(*r.gradients_taken);
  });
  scattered = gradients;
  scattered_from = device;
}

void Engine::State::release_scattered_gradients(Replica& r) {
  if (r.ordinal != scattered_from || !scattered) return;
  const PhaseScope phase(r.compute(), Phase::scatter_grad);
  for (auto& other : replicas) {
    if (other->samples > 0 && other.get() != &r) r.compute().wait(*other->gradients_taken, "scatter_grad");
  }
  scattered = Tensor();
}

void Engine::set_output_gradients(const Tensor& gradients, int device) {
  in_step("set_output_gradients").scatter_gradients(gradients, device);
}

void Engine::add_totals(const Tensor& totals, int device) {
  Replica& r = in_step("add_totals").replica(device);
  const PhaseScope phase(r.compute(), Phase::loss);
  add(r.compute(), totals, r.totals(), r.totals());
}

int64_t Engine::nominal_targets() const { return state_->nominal_targets(); }
View Engine::loss_scale(int device) const { return in_step("loss_scale").replica(device).scaler->scale(); }
ConstView Engine::step_control(int device) const { return in_step("step_control").replica(device).scaler->control(); }

void Engine::State::compute_loss(Replica& r, const Tensor& logits, const View& gradients, const View& totals) {
  const PhaseScope phase(r.compute(), Phase::loss);
  const CrossEntropyConfig loss_config{config.ignore_index, 1.0F / static_cast<float>(nominal_targets()),
                                       gradients ? config.label_smoothing : 0.0F};
  softmax_cross_entropy(r.compute(), loss_config, logits, r.targets, gradients ? r.scaler->scale() : View(), gradients,
                        totals);
}

void Engine::loss() {
  State& s = in_step("loss");
  const auto compute_with_gradient = [&s](Replica& r, const Tensor& logits) {
    Tensor gradient = logits;
    if (!s.gradient_over_output) {
      const PhaseScope phase(r.compute(), Phase::loss);
      gradient = r.compute().allocate(logits.shape(), logits.dtype(), Category::activations, "gradient of outputs");
    }
    s.compute_loss(r, logits, gradient, r.totals());
    return gradient;
  };
  if (s.config.scheme.loss_at == LossAt::parallel) {
    return s.for_each_at_once([&](Replica& r) {
      if (r.samples > 0) r.output_gradient = compute_with_gradient(r, r.output);
    });
  }
  const int device = s.config.scheme.output_device;
  const Tensor all = gather_outputs(device);
  s.scatter_gradients(compute_with_gradient(s.output_replica(), all), device);
}

void Engine::State::run_backward(Replica& r, const Sequential::GradientsReady& gradients_ready) {
  release_scattered_gradients(r);
  const PhaseScope phase(r.compute(), Phase::backward);
  const Pass pass = pass_of(r, true);
  const GradMode mode = r.has_gradients ? GradMode::accumulate : GradMode::overwrite;
  r.has_gradients = true;
  r.output = Tensor();
  model.net->backward_from(r.compute(), r.parameter_views, std::exchange(r.saved, {}),
                           std::exchange(r.output_gradient, {}), r.gradient_views, mode, pass, gradients_ready,
                           recomputed, r.buffer_views);
}

void Engine::State::run_backward_empty(Replica& r, bool reduces, const Sequential::GradientsReady& gradients_ready) {
  release_scattered_gradients(r);
  if (reduces) {
    const PhaseScope phase(r.compute(), Phase::reduce);
    zero_unwritten_gradients(r);
  }
  if (!sums_over_batch(r)) {
    const PhaseScope phase(r.compute(), Phase::reduce);
    gradients_ready(0);
    return;
  }
  const PhaseScope phase(r.compute(), Phase::backward);
  const Pass pass = pass_of(r, true);
  model.net->backward_empty({r.compute(), model.input_shape(1), pass, r.buffer_views}, gradients_ready);
}

void Engine::State::share_buffers() {
  if (config.batch_statistics != BatchStatistics::local || buffer_layout.saved().size() == 0) return;
  for_each_at_once([](Replica& r) {
    if (!r.exchange) return;
    const PhaseScope phase(r.compute(), Phase::broadcast);
    r.exchange->broadcast(r.buffers);
  });
}

void Engine::State::zero_unwritten_gradients(Replica& r) {
  if (r.has_gradients) return;
  zero(r.compute(), r.parameter_gradients());
  r.has_gradients = true;
}

UpdateCount Engine::State::update_count(const Replica& r) const {
  const ConstView values = graphs ? graphs->values_of_capture() : ConstView();
  if (config.optimizer.kind == OptimizerConfig::Kind::sgd) return {.step = r.updates_done, .values = values};
  const AdamConfig adam = config.optimizer.adam_kernel();
  return {r.updates_done, adam.lr, adam.beta1, adam.beta2, values};
}

void Engine::State::run_optimizer(Replica& r) {
  const OptimizerConfig& optimizer = config.optimizer;
  const View control = r.scaler->step();  // decide_step() has counted the update
  const PhaseScope phase(r.compute(), Phase::optimizer);
  const View parameters = r.parameters, gradients = r.parameter_gradients(), half_parameters = r.half_parameters;
  const ConstView values = graphs ? graphs->values_of_capture() : ConstView();
  if (optimizer.kind == OptimizerConfig::Kind::sgd) {
    sgd_update(r.compute(), optimizer.sgd, parameters, gradients, r.state1, View(), control, update_ranges,
               half_parameters, values);
  } else {
    adam_update(r.compute(), optimizer.adam_kernel(), parameters, gradients, r.state1, r.state2, View(), control,
                update_ranges, half_parameters, values);
  }
  if (r.average) update_average(r.compute(), config.ema_decay, parameters, r.average, r.updates_done, control);
}

Engine::NoReductionScope::NoReductionScope(Engine& engine)
    : engine_(engine), previous_(std::exchange(engine.in_step("NoReductionScope").reduction_on, false)) {}
Engine::NoReductionScope::~NoReductionScope() { engine_.state_->reduction_on = previous_; }

}  // namespace vitrine
