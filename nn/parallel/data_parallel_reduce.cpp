// SPDX-License-Identifier: Apache-2.0
// Backward, reduction, update and recovery of DataParallel.
#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "kernels/cross_entropy.h"
#include "kernels/difference.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "nn/parallel/data_parallel.h"
#include "nn/parallel/data_parallel_state.h"
#include "runtime/copy.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

constexpr int64_t kPollsBeforeSleep = 200;
constexpr std::chrono::microseconds kPollInterval{20};
// As long as the process group takes to find who died: an error of a communicator may be the echo of that.
constexpr int64_t kEchoPatienceMs = 2000;

}  // namespace

void DataParallel::State::ensure_gradients(Replica& r) {
  if (r.has_gradients) return;
  zero(r.compute(), r.gradients.view().rows(0, layout.parameter_elements()));
  r.has_gradients = true;
}

void DataParallel::State::issue_buckets(Replica& r, int64_t finished_end) {
  while (r.next_bucket < buckets.size()) {
    const Bucket& bucket = buckets[r.next_bucket];
    // The tail behind the parameters is final since the loss.
    if (std::min(bucket.end, layout.parameter_elements()) > finished_end) return;
    ++r.next_bucket;
    reduce_bucket(r, bucket);
  }
}

void DataParallel::State::reduce_bucket(Replica& r, const Bucket& bucket) {
  ExecContext& ctx = r.communication();
  const int64_t parameters_end = std::min(bucket.end, layout.parameter_elements());
  const bool has_totals = bucket.end > parameters_end;
  if (reduces_packed()) {
    const PhaseScope phase(r.compute(), Phase::cast);
    cast(r.compute(), r.gradients.view().rows(bucket.begin, parameters_end), r.packed_gradients.view().rows(bucket.begin, parameters_end));
  }
  r.compute().record(*r.gradients_ready);
  const PhaseScope phase(ctx, Phase::reduce, bucket.name.c_str());
  ctx.wait(*r.gradients_ready, "backward");
  if (!reduces_packed()) return communicator(r).all_reduce(ctx, r.gradients.view().rows(bucket.begin, bucket.end));
  communicator(r).all_reduce(ctx, r.packed_gradients.view().rows(bucket.begin, parameters_end));
  if (measures_reduction) communicator(r).all_reduce(ctx, r.gradients.view().rows(bucket.begin, parameters_end));
  // Counts of targets are no numbers for 16 bits.
  if (has_totals) communicator(r).all_reduce(ctx, r.tail());
}

void DataParallel::State::reduce_on_device0(Replica& r) {
  ExecContext& ctx = r.communication();
  const View parameters = r.gradients.view().rows(0, layout.parameter_elements());
  if (reduces_packed()) {
    const PhaseScope phase(r.compute(), Phase::cast);
    cast(r.compute(), parameters, r.packed_gradients);
  }
  r.compute().record(*r.gradients_ready);
  const PhaseScope phase(ctx, Phase::reduce, "gradients");
  ctx.wait(*r.gradients_ready, "backward");
  const auto sum = [&](const View& part) { communicator(r).reduce(ctx, part, r.ordinal == 0 ? part : View(), 0); };
  if (!reduces_packed()) return sum(r.gradients);
  sum(r.packed_gradients);
  if (measures_reduction) sum(parameters);
  sum(r.tail());
}

void DataParallel::State::cast_parameters(Replica& r) {
  if (!r.half_parameters || !r.parameters) return;
  const PhaseScope phase(r.compute(), Phase::cast);
  cast(r.compute(), r.parameters, r.half_parameters);
}

void DataParallel::State::backward_of(Replica& r, bool reduce_now) {
  const PhaseScope phase(r.compute(), Phase::backward);
  const Pass pass{true, config.seed, step, r.first_sample};
  const GradMode mode = r.has_gradients ? GradMode::accumulate : GradMode::overwrite;
  r.has_gradients = true;
  Sequential::GradientsReady ready = [](int) {};
  if (reduce_now) ready = [this, &r](int first_parameter) { issue_buckets(r, finished[static_cast<size_t>(first_parameter)]); };
  outputs[static_cast<size_t>(r.ordinal)] = Tensor();
  Tensor gradient = std::exchange(output_gradients[static_cast<size_t>(r.ordinal)], {});
  model.net->backward_from(r.compute(), r.parameter_views, std::exchange(r.saved, {}), std::move(gradient), r.gradient_views, mode, pass, ready,
                           cuts);
}

void DataParallel::backward(bool last) {
  State& s = *state_;
  const bool reduce_now = last && s.reduction_on && s.reduces() && s.config.scheme.reduce == Reduce::allreduce;
  s.for_each_at_once([&](Replica& r) {
    if (r.ordinal == s.handed_out_device && s.handed_out) s.release_handed_out();
    if (r.samples > 0) return s.backward_of(r, reduce_now);
    if (!reduce_now) return;
    // Its peers may wait on the host until it takes part.
    const PhaseScope phase(r.compute(), Phase::reduce);
    s.ensure_gradients(r);
    s.issue_buckets(r, std::numeric_limits<int64_t>::max());
  });
}

void DataParallel::reduce() {
  State& s = *state_;
  s.require_training("reduce");
  s.for_each_at_once([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::reduce);
    s.ensure_gradients(r);
    if (!s.reduces() || !s.reduction_on) return;
    ExecContext& ctx = r.communication();
    if (s.config.scheme.reduce == Reduce::allreduce) {
      s.issue_buckets(r, std::numeric_limits<int64_t>::max());
    } else {
      s.reduce_on_device0(r);
    }
    ctx.record(*r.reduced);
    r.compute().wait(*r.reduced, "reduce");
    if (!s.reduces_packed() || !s.updates(r.ordinal)) return;
    s.unpack_gradients(r);
  });
}

void DataParallel::State::unpack_gradients(Replica& r) {
  const View gradients = r.gradients.view().rows(0, layout.parameter_elements());
  const PhaseScope phase(r.compute(), Phase::cast);
  if (measures_reduction) difference_norms(r.compute(), r.packed_gradients, gradients, r.reduction_error);
  cast(r.compute(), r.packed_gradients, gradients);
}

void DataParallel::unscale() {
  State& s = *state_;
  const auto nominal = static_cast<double>(s.nominal_targets());
  s.for_each_at_once([&](Replica& r) {
    if (!s.updates(r.ordinal)) return;
    r.scaler->unscale(r.compute(), nominal, r.gradients.view().rows(0, s.layout.parameter_elements()), r.totals(), s.config.non_finite());
  });
}

void DataParallel::resume() {
  for (auto& r : state_->replicas) {
    if (r->scaler) r->scaler->resume(r->compute());
  }
}

void DataParallel::clip(double max_norm) {
  State& s = *state_;
  s.for_each_at_once([&](Replica& r) {
    if (s.updates(r.ordinal)) r.scaler->clip(r.compute(), max_norm);
  });
}

void DataParallel::update() {
  State& s = *state_;
  const OptimizerConfig& optimizer = s.config.optimizer;
  s.for_each_at_once([&](Replica& r) {
    if (!s.updates(r.ordinal)) return;
    ExecContext& ctx = r.compute();
    const View control = r.scaler->step();
    {
      const PhaseScope phase(ctx, Phase::optimizer);
      const View gradients = r.gradients.view().rows(0, s.layout.parameter_elements());
      if (optimizer.kind == OptimizerConfig::Kind::sgd) {
        sgd_update(ctx, optimizer.sgd, r.parameters, gradients, r.state1, r.updates_done, control);
      } else {
        adam_update(ctx, optimizer.adam_kernel(), r.parameters, gradients, r.state1, r.state2, r.updates_done, control);
      }
    }
    s.cast_parameters(r);
  });
}

void DataParallel::update_loss_scale() {
  State& s = *state_;
  s.for_each_at_once([&](Replica& r) {
    if (s.updates(r.ordinal)) r.scaler->update(r.compute());
  });
}

void DataParallel::broadcast() {
  State& s = *state_;
  s.require_training("broadcast");
  if (s.config.scheme.reduce != Reduce::gpu0 || !s.reduces()) return;
  Replica& root = s.replica(0);
  root.compute().record(*root.updated);
  s.for_each_at_once([&](Replica& r) {
    ExecContext& ctx = r.communication();
    {
      const PhaseScope phase(ctx, Phase::broadcast);
      if (r.ordinal == 0) ctx.wait(*root.updated, "optimizer");
      s.communicator(r).broadcast(ctx, s.broadcasts_half() ? r.half_parameters : r.parameters, 0);
      if (r.scaler->state()) s.communicator(r).broadcast(ctx, r.scaler->state(), 0);
    }
    ctx.record(*r.received);
    {
      const PhaseScope phase(r.compute(), Phase::broadcast);
      r.compute().wait(*r.received, "broadcast");
    }
    if (r.ordinal != 0) s.cast_parameters(r);
  });
}

void DataParallel::read_step(View tail, View control) {
  state_->require_training("read_step");
  Replica& root = state_->replica(0);
  const PhaseScope phase(root.compute(), Phase::optimizer);
  copy(root.compute(), root.tail(), tail);
  copy(root.compute(), root.scaler->control(), control);
}

void DataParallel::measure_reduction(bool on) { state_->measures_reduction = on && state_->reduces_packed() && state_->reduces(); }

void DataParallel::read_reduction_error(View host) {
  Replica& root = state_->replica(0);
  copy(root.compute(), root.reduction_error, host);
}

void DataParallel::watch_for_non_finite(bool on) { state_->watches = on; }

void DataParallel::read_non_finite(View host) {
  state_->for_each([&](Replica& r) { copy(r.compute(), r.overflowed, host.rows(r.ordinal, r.ordinal + 1)); });
}

void DataParallel::record_step_done(int slot) {
  state_->for_each([&](Replica& r) { r.compute().record(*r.step_done[static_cast<size_t>(slot)]); });
}

bool DataParallel::State::is_stuck() const {
  if (communicators && !(*communicators)[0]->failure().empty()) return true;
  return std::any_of(replicas.begin(), replicas.end(), [](const std::unique_ptr<Replica>& r) { return r->compute().stream().lost(); });
}

void DataParallel::wait_step_done(int slot) {
  State& s = *state_;
  const bool polls = s.on_gpus() && s.communicators != nullptr;
  std::optional<ProcessGroup::Waiting> waiting;
  for (auto& r : s.replicas) {
    Event& done = *r->step_done[static_cast<size_t>(slot)];
    // A GPU or a communicator that broke is found by asking; the streams of its peers would wait for it without end.
    for (int64_t round = 0; polls && !done.reached(); ++round) {
      if (round < kPollsBeforeSleep) continue;
      if (!waiting && s.devices.process_count() > 1)
        waiting.emplace(*s.devices.process_group(), fmt::format("step {} on {}", s.step, r->device.name()));
      if (s.is_stuck()) return;
      std::this_thread::sleep_for(kPollInterval);
    }
    done.synchronize();
  }
}

void DataParallel::State::set_replica(Replica& r, std::span<const float> flat) {
  const PhaseScope phase(r.compute(), Phase::replicate);
  const Shape shape{layout.parameter_elements()};
  if (r.parameters) {
    vitrine::copy(r.compute(), ConstView(flat.data(), shape, DType::f32, DeviceId::host()), r.parameters);
    return cast_parameters(r);
  }
  if (config.forward_only) {
    const std::vector<std::byte> narrow = narrow_on_host(r.half_parameters.dtype(), flat);
    vitrine::copy(r.compute(), ConstView(narrow.data(), shape, r.half_parameters.dtype(), DeviceId::host()), r.half_parameters);
    return r.device.synchronize();
  }
  // The bits that device 0 casts and broadcasts in every step.
  devices.synchronize();
  vitrine::copy(r.compute(), replica(0).half_parameters, r.half_parameters);
}

void DataParallel::set_parameters(std::span<const float> flat) {
  State& s = *state_;
  VITRINE_ASSERT(static_cast<int64_t>(flat.size()) == s.layout.parameter_elements(), "parameters come in the engine's layout");
  s.devices.synchronize();
  s.for_each([&](Replica& r) { s.set_replica(r, flat); });
  s.devices.synchronize();
  if (s.devices.process_count() == 1) return;
  const ProcessGroup::Waiting waiting(*s.devices.process_group(), "the parameters of rank 0");
  s.for_each_at_once([&](Replica& r) {
    const PhaseScope phase(r.communication(), Phase::replicate, "parameters");
    s.communicator(r).broadcast(r.communication(), r.parameters ? r.parameters : r.half_parameters, 0);
  });
  s.devices.synchronize();
  s.for_each([&](Replica& r) { s.cast_parameters(r); });
  s.devices.synchronize();
}

std::vector<float> DataParallel::parameters(int device) {
  State& s = *state_;
  Replica& r = s.replica(device);
  return s.read_flat(r, r.parameters ? r.parameters : r.half_parameters);
}

std::vector<float> DataParallel::working_parameters(int device) {
  State& s = *state_;
  Replica& r = s.replica(device);
  return s.read_flat(r, r.working_parameters());
}

std::vector<float> DataParallel::State::read_flat(Replica& r, const View& flat) {
  std::vector<float> values(static_cast<size_t>(flat.numel()));
  std::vector<std::byte> narrow(flat.dtype == DType::f32 ? 0 : static_cast<size_t>(flat.bytes()));
  void* const target = narrow.empty() ? static_cast<void*>(values.data()) : narrow.data();
  copy(r.compute(), flat, View{target, flat.shape, flat.dtype, DeviceId::host()});
  devices.synchronize();
  note_host_read(devices, "parameters", ConstView(target, flat.shape, flat.dtype, DeviceId::host()));
  if (!narrow.empty()) widen_on_host(flat.dtype, narrow.data(), flat.numel(), values.data());
  return values;
}

std::vector<float> DataParallel::gradients(int device) {
  State& s = *state_;
  s.require_training("gradients");
  Replica& r = s.replica(device);
  return s.read_flat(r, r.gradients.view().rows(0, s.layout.parameter_elements()));
}

View DataParallel::loss_scale(int device) const {
  state_->require_training("loss_scale");
  return state_->replica(device).scaler->scale();
}

void DataParallel::set_loss_scale_state(float scale, int32_t growth_tracker) {
  state_->require_training("set_loss_scale_state");
  state_->devices.synchronize();
  state_->for_each([&](Replica& r) { r.scaler->set_state(r.compute(), scale, growth_tracker); });
}

std::pair<float, int32_t> DataParallel::loss_scale_state(int device) {
  state_->require_training("loss_scale_state");
  Replica& r = state_->replica(device);
  if (!r.scaler->state()) throw OrderError("loss_scale: losses are not scaled");
  const std::vector<float> values = state_->read_flat(r, r.scaler->state());
  return {values[LossScaleState::kScale], static_cast<int32_t>(values[LossScaleState::kGrowthTracker])};
}

void DataParallel::set_learning_rate(double lr) { state_->config.optimizer.set_learning_rate(lr); }

bool DataParallel::failed() const {
  if (state_->communicators && !(*state_->communicators)[0]->failure().empty()) return true;
  for (auto& r : state_->replicas) {
    for (ExecContext* ctx : {&r->compute(), &r->copy(), &r->communication()}) {
      if (ctx->stream().failed()) return true;
    }
  }
  return false;
}

void DataParallel::State::report_failure(const std::exception_ptr& error) {
  if (devices.process_group() == nullptr || devices.process_count() == 1) return;
  try {
    std::rethrow_exception(error);
  } catch (const CommError& e) {
    devices.process_group()->fail(e.what(), kEchoPatienceMs);
  } catch (const std::exception& e) {
    devices.process_group()->fail(e.what());
  } catch (...) {
    devices.process_group()->fail("an exception of unknown type");
  }
}

std::exception_ptr DataParallel::recover(const std::exception_ptr& known) {
  State& s = *state_;
  // The cause is the first failure that is not the echo of another one.
  std::exception_ptr cause, echo;
  const std::string broken = s.communicators ? (*s.communicators)[0]->failure() : std::string();
  if (!broken.empty()) echo = std::make_exception_ptr(CommError(broken));
  if (known) (is_comm_error(known) ? echo : cause) = known;
  // GPUs that only found wrong data finish what was issued: it changes nothing, while an abort in its midst might.
  const bool aborts = s.communicators && (!s.on_gpus() || s.is_stuck());
  const std::exception_ptr told = cause ? cause : echo;
  if (known || aborts) s.report_failure(told ? told : std::make_exception_ptr(CommError("a step was given up")));
  if (aborts) (*s.communicators)[0]->abort("a step was given up");
  for (auto& r : s.replicas) {
    for (ExecContext* ctx : {&r->compute(), &r->copy(), &r->communication()}) {
      try {
        ctx->stream().synchronize();
      } catch (...) {
        try {
          rethrow_with_prefix(std::current_exception(), r->device.name() + ": ");
        } catch (const CommError&) {
          if (!echo) echo = std::current_exception();
        } catch (...) {
          if (!cause) cause = std::current_exception();
        }
      }
    }
    r->forget_micro_batch();
  }
  try {
    for (auto& r : s.replicas) r->make_events();
  } catch (...) {  // a GPU that is lost makes none; nothing will run on it again
    if (!cause) cause = std::current_exception();
  }
  s.outputs.assign(s.outputs.size(), Tensor());
  std::fill(s.output_gradients.begin(), s.output_gradients.end(), Tensor());
  s.gathered = s.handed_out = Tensor();
  // NCCL communicators that were handed in cannot be made anew, nor those whose peers are other processes: they stay aborted, and say so.
  if (aborts && s.devices.options().nccl_communicators.empty() && s.devices.process_count() == 1) {
    s.retired.push_back(s.communicators);
    s.close_communicators();
    try {
      s.open_communicators();
    } catch (...) {
      // A GPU that is lost cannot join again. What was aborted stays, and fails every later step with its reason.
      s.communicators = s.retired.back();
      if (!cause) cause = std::current_exception();
    }
  }
  if (s.devices.checker() != nullptr) s.devices.checker()->forget_accesses();
  if (cause) s.report_failure(cause);
  if (const std::string verdict = s.devices.process_group() != nullptr ? s.devices.process_group()->failure() : std::string(); !verdict.empty())
    echo = std::make_exception_ptr(CommError(verdict));
  return cause ? cause : echo;
}

}  // namespace vitrine
