// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/step/model_passes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/average.h"
#include "kernels/non_finite.h"
#include "nn/parallel/reduce/shard.h"
#include "nn/parallel/replicas/host_copies.h"
#include "nn/parallel/settings.h"
#include "nn/segments.h"
#include "runtime/copy.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

std::vector<PartRange> recomputed_segments(const Model& model, const EngineConfig& config) {
  const Shape input = model.input_shape(1);
  if (config.recompute.empty())
    return cut_in_segments(*model.net, input, config.precision.compute, config.recompute_segments);
  if (config.recompute_segments != 1) {
    throw ConfigError({"engine: ", given(settings::kRecompute, fmt::format("{}", fmt::join(config.recompute, ","))),
                       " and ", given(settings::kRecomputeSegments, std::to_string(config.recompute_segments)),
                       " both say what is recomputed; give one"});
  }
  return find_segments(*model.net, config.recompute);
}

}  // namespace

ModelPasses::ModelPasses(const EngineSetup& setup, ReplicaGroup& replicas, Stager& stager, OutputExchange& outputs)
    : setup_(setup),
      replicas_(replicas),
      stager_(stager),
      outputs_(outputs),
      recomputed_(recomputed_segments(setup.model, setup.config)) {
  replicas_.on_recovery([this] { searches_non_finite_ = false; });
  if (!setup.config.update_in_backward) return;
  replicas_.for_each([this](Replica& r) {
    r.reducer_context.update = [this, &r](int64_t begin, const View& gradients) {
      const Shard& shard = r.optimizer.shard;
      const auto piece = std::ranges::find_if(shard, [&](const ShardPiece& one) { return one.begin == begin; });
      VITRINE_ASSERT(piece != shard.end() && piece->size() == gradients.numel(), "a bucket is whole pieces");
      update(r, *piece, gradients);
    };
  });
}

void ModelPasses::begin_step(int64_t step, int64_t samples) {
  step_ = step;
  stager_.begin(Stager::kTraining, samples);
  replicas_.for_each([&](Replica& r) {
    r.scaler->reset();
    if (r.exact != nullptr) r.exact->begin_batch(samples);
    r.reducer->begin_step(step);
    for (ExecContext* ctx : r.contexts()) ctx->set_step(step);
    r.compute().mark_step();
    r.model.has_gradients = false;
  });
}

void ModelPasses::begin_totals() {
  static constexpr float kVote = 1.0F;
  replicas_.for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::loss);
    zero(r.compute(), r.reducer_context.tail());
    if (votes_to_stop_ && r.ordinal() == 0)
      copy(r.compute(), ConstView(&kVote, {1}, DType::f32, DeviceId::host()), r.stop_votes());
  });
}

Sequential::ParametersUsed ModelPasses::used_by(Replica& r, GatheredParameters::Direction direction) {
  if (!r.gathered || !r.gathered->begin_pass(direction)) return nullptr;
  return [this, &r](Sequential::Use use, int first, int end) {
    if (use == Sequential::Use::ends) return r.gathered->end_use(first, end);
    r.gathered->begin_use(first, end);
    if (!searches_non_finite_ || r.batch.samples == 0) return;
    for (int i = first; i < end; ++i)
      find_non_finite(r.compute(), r.model.parameter_views[static_cast<size_t>(i)], i, r.scalars.first_non_finite);
  };
}

Pass ModelPasses::pass_of(const Replica& r, bool training) const {
  Pass pass{training, setup_.config.seed, step_, r.batch.first_sample};
  pass.updates_buffers = !searches_non_finite_;
  pass.input_form = stager_.input_form();
  if (setup_.config.exact()) pass.leaves = &r.batch.leaves;
  if (!training) return pass;
  pass.step_values = r.scalars.captured_values;
  if (!setup_.config.exact() && r.exchange && setup_.config.batch_statistics == BatchStatistics::exact &&
      r.batch.micro_batch_samples > 0) {
    pass.batch_sum = r.exchange.get();
    pass.batch_samples = r.batch.micro_batch_samples;
  }
  return pass;
}

void ModelPasses::forward(const StagedBatch* staged) {
  const bool training = staged != nullptr;
  replicas_.for_each_at_once([&](Replica& r) {
    ExecContext& ctx = r.compute();
    if (training) stager_.prepare_input(*staged, r);
    const Pass pass = pass_of(r, training);
    const Sequential::ParametersUsed used = used_by(r, GatheredParameters::Direction::forward);
    if (r.batch.samples == 0) {
      if (!used && !pass.sums_over_devices()) return;
      const PhaseScope phase(ctx, Phase::forward);
      setup_.model.net->forward_empty({ctx, setup_.model.input_shape(1), pass, r.model.buffer_views}, used);
      if (r.gathered) r.gathered->finish();
      if (!training && r.gathered) r.gathered->release();
      return;
    }
    const PhaseScope phase(ctx, Phase::forward);
    const Tensor input = std::move(r.batch.input);
    Sequential::OutputReady observe;
    if (training && searches_non_finite_) {
      int32_t number = 0;
      const View& found = r.scalars.first_non_finite;
      for (const View& parameter : r.model.parameter_views) {
        if (parameter) find_non_finite(ctx, parameter, number, found);
        ++number;
      }
      if (input.dtype() != DType::i32) find_non_finite(ctx, input, number, found);
      ++number;
      observe = [&ctx, found, number](int part, const Tensor& output) {
        find_non_finite(ctx, output, number + part, found);
      };
    }
    if (training) r.batch.output = outputs_.allocate_output(r);
    r.batch.saved = setup_.model.net->forward_from(ctx, r.model.parameter_views, input, r.batch.output, pass, observe,
                                                   recomputed_, r.model.buffer_views, used);
    r.batch.output = r.batch.output.reshape(setup_.model.logits_shape(r.batch.samples));
    if (r.gathered) r.gathered->finish();
    if (training) return;
    r.batch.saved = Saved();
    if (r.gathered) r.gathered->release();
  });
}

void ModelPasses::run_backward(Replica& r, const std::function<void(int)>& gradients_ready) {
  outputs_.release_scattered(r);
  const PhaseScope phase(r.compute(), Phase::backward);
  const bool in_buckets = r.reducer_context.has_gradient_buckets();  // the owners accumulate
  const GradMode mode =
      std::exchange(r.model.has_gradients, true) && !in_buckets ? GradMode::accumulate : GradMode::overwrite;
  GradientHooks hooks{.ready = gradients_ready};
  if (in_buckets) {
    hooks.begin = [&](int first_parameter) {
      r.reducer->begin_gradients(finished_elements(setup_.layout, first_parameter), setup_.layout,
                                 r.model.gradient_views);
    };
  }
  r.batch.output = Tensor();
  setup_.model.net->backward_from(r.compute(), r.model.parameter_views, std::exchange(r.batch.saved, {}),
                                  std::exchange(r.batch.output_gradient, {}), r.model.gradient_views, mode,
                                  pass_of(r, true), hooks, recomputed_, r.model.buffer_views,
                                  used_by(r, GatheredParameters::Direction::backward));
  if (r.gathered) r.gathered->release();
}

void ModelPasses::run_backward_empty(Replica& r, bool reduces, const std::function<void(int)>& gradients_ready) {
  outputs_.release_scattered(r);
  const Pass pass = pass_of(r, true);
  if (reduces) {
    const PhaseScope phase(r.compute(), Phase::reduce);
    zero_unwritten_gradients(r);
  }
  const Sequential::ParametersUsed used = used_by(r, GatheredParameters::Direction::backward);
  if (!used && !pass.sums_over_devices()) {
    const PhaseScope phase(r.compute(), Phase::reduce);
    gradients_ready(0);
    return;
  }
  const PhaseScope phase(r.compute(), Phase::backward);
  setup_.model.net->backward_empty(
      {r.compute(), setup_.model.input_shape(1), pass, r.model.buffer_views, {.ready = gradients_ready}}, recomputed_,
      used);
  if (r.gathered) r.gathered->release();
}

void ModelPasses::zero_unwritten_gradients(Replica& r) {
  if (r.reducer_context.has_gradient_buckets()) return;  // the reducer zeroes a bucket that nothing was written to
  if (!std::exchange(r.model.has_gradients, true)) zero(r.compute(), r.parameter_gradients());
}

void ModelPasses::share_buffers() {
  if (setup_.config.batch_statistics != BatchStatistics::local || setup_.buffer_layout.saved().size() == 0) return;
  replicas_.for_each_at_once([](Replica& r) {
    if (!r.exchange) return;
    const PhaseScope phase(r.compute(), Phase::broadcast);
    r.exchange->broadcast(r.model.buffers);
  });
}

UpdateCount ModelPasses::update_count(const Replica& r) const {
  const ConstView values = r.scalars.captured_values;
  const OptimizerConfig& optimizer = setup_.config.optimizer;
  if (optimizer.kind == OptimizerConfig::Kind::sgd) return {.step = r.optimizer.updates_done, .values = values};
  const AdamConfig adam = optimizer.adam_kernel();
  return {r.optimizer.updates_done, adam.lr, adam.beta1, adam.beta2, values};
}

void ModelPasses::decide(Replica& r) {
  r.scaler->decide_step(r.compute(), static_cast<double>(setup_.nominal_targets()), r.parameter_gradients(), r.totals(),
                        setup_.config.non_finite(), update_count(r), r.reducer->squared());
}

void ModelPasses::begin_updates(Replica& r) {
  r.reducer_context.control = r.scaler->step();
  if (r.gathered) r.gathered->begin_updates();
}

void ModelPasses::run_optimizer(Replica& r) {
  begin_updates(r);
  for (const ShardPiece& piece : r.optimizer.shard) update(r, piece, r.gradients_of(piece));
}

void ModelPasses::update(Replica& r, const ShardPiece& piece, const View& gradients) {
  const OptimizerConfig& config = setup_.config.optimizer;
  const OptimizerMemory& state = r.optimizer;
  const View& control = r.reducer_context.control;  // decide_step() has counted the update
  const PhaseScope phase(r.compute(), Phase::optimizer);
  const ConstView values = r.scalars.captured_values;
  const View parameters = r.parameters_of(piece, r.reducer_context.parameters),
             half_parameters = r.parameters_of(piece, r.reducer_context.half_parameters),
             state1 = piece.of_states(state.state1), state2 = piece.of_states(state.state2),
             average = piece.of_states(state.average);
  if (config.kind == OptimizerConfig::Kind::sgd) {
    sgd_update(r.compute(), config.sgd, parameters, gradients, state1, View(), control, piece.ranges, half_parameters,
               values);
  } else {
    adam_update(r.compute(), config.adam_kernel(), parameters, gradients, state1, state2, View(), control, piece.ranges,
                half_parameters, values);
  }
  if (average) update_average(r.compute(), setup_.config.ema_decay, parameters, average, state.updates_done, control);
  if (!state.stopped) return;
  const int64_t number = &piece - state.shard.data();
  copy(r.compute(), control.rows(StepControl::kStopped, StepControl::kStopped + 1),
       state.stopped.view().rows(number, number + 1));
}

std::string ModelPasses::describe_non_finite(int32_t found) const {
  const FlatLayout& layout = setup_.layout;
  if (found < layout.size()) return "parameter " + layout.specs()[static_cast<size_t>(found)].name;
  if (found == layout.size()) return "the input";
  return "the output of " + setup_.model.net->parts()[static_cast<size_t>(found - layout.size() - 1)].name;
}

std::string ModelPasses::find_first_non_finite(int64_t step, int64_t samples, const HostBatch& batch,
                                               const ProcessPart& part) {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> found(static_cast<size_t>(replicas_.size()), -1);
  searches_non_finite_ = true;
  begin_step(step, samples);
  static constexpr int32_t kNothing = -1;
  replicas_.for_each([](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::loss);
    copy(r.compute(), ConstView(&kNothing, {1}, DType::i32, DeviceId::host()), r.scalars.first_non_finite);
  });
  replicas_.finish_gathering(step);
  for (const MicroBatch& micro_batch : part.micro_batches) {
    const StagedBatch staged =
        stager_.stage(batch, micro_batch, setup_.config.scheme.staging, setup_.config.scheme.loss_at);
    forward(&staged);
  }
  searches_non_finite_ = false;
  const View numbers{found.data(), {static_cast<int64_t>(found.size())}, DType::i32, DeviceId::host()};
  replicas_.for_each([&](Replica& r) {
    copy(r.compute(), r.scalars.first_non_finite, numbers.rows(r.ordinal(), r.ordinal() + 1));
    r.forget_micro_batch();
  });
  setup_.devices.synchronize();
  note_host_read(setup_.devices, "find_first_non_finite", numbers);
  int32_t first = kNone;
  for (const int32_t number : found) first = number >= 0 ? std::min(first, number) : first;
  // All processes reach this point: the loss is the sum over all of them.
  if (setup_.peers() != nullptr) {
    const auto least = [](const std::vector<std::string>& answers) {
      int32_t number = kNone;
      for (const std::string& answer : answers) number = std::min(number, std::stoi(answer));
      return std::vector<std::string>{std::to_string(number)};
    };
    first = std::stoi(setup_.peers()->exchange("what is not finite", std::to_string(first), least));
  }
  return first == kNone ? std::string() : describe_non_finite(first);
}

}  // namespace vitrine
