// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/data_parallel.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/non_finite.h"
#include "nn/parallel/data_parallel_state.h"
#include "nn/segments.h"
#include "runtime/copy.h"
#include "runtime/half.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {

namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

void widen_on_host(DType dtype, const void* values, int64_t count, float* wide) {
  switch (dtype) {
    case DType::f16:
      return cpu::widen(static_cast<const cpu::Half*>(values), wide, count);
    case DType::bf16:
      return cpu::widen(static_cast<const cpu::BFloat16*>(values), wide, count);
    default:
      std::memcpy(wide, values, static_cast<size_t>(count) * sizeof(float));
  }
}

std::vector<std::byte> narrow_on_host(DType dtype, std::span<const float> wide) {
  std::vector<std::byte> narrow(wide.size() * sizeof(uint16_t));
  const auto count = static_cast<int64_t>(wide.size());
  if (dtype == DType::f16) {
    cpu::narrow(wide.data(), reinterpret_cast<cpu::Half*>(narrow.data()), count);
  } else {
    VITRINE_ASSERT(dtype == DType::bf16, "16-bit copies are f16 or bf16");
    cpu::narrow(wide.data(), reinterpret_cast<cpu::BFloat16*>(narrow.data()), count);
  }
  return narrow;
}

void note_host_read(DeviceGroup& devices, const char* operation, const ConstView& memory) {
  if (devices.checker() == nullptr || memory.bytes() == 0) return;
  const MemoryAccess access{memory.data, memory.bytes(), false, operation};
  devices.checker()->on_host_access(operation, {&access, 1});
}

DataParallel::State::State(const Model& m, DeviceGroup& d, const EngineConfig& c)
    : model(m),
      devices(d),
      config(c),
      layout(m.net->parameters(), kTail),
      buckets(make_buckets(layout, c.first_bucket_bytes, c.bucket_bytes)),
      finished(finished_elements(layout)),
      cuts(cut_in_segments(*m.net, m.input_shape(1), c.precision.compute, c.recompute_segments)),
      gradient_over_output(c.loss_gradient_in_place && m.net->output_is_free(m.input_shape(1), Pass{})),
      outputs(static_cast<size_t>(d.size())),
      output_gradients(static_cast<size_t>(d.size())) {}

void DataParallel::State::for_each_at_once(const std::function<void(Replica&)>& work) {
  if (threads == nullptr) return for_each(work);
  std::vector<std::exception_ptr> errors(replicas.size());
  threads->run([&](int i) {
    Replica& r = replica(i);
    try {
      work(r);
    } catch (...) {
      errors[static_cast<size_t>(i)] = std::current_exception();
      // Those who wait for this replica would wait in vain.
      if (communicators) communicator(r).abort(r.device.name() + " failed while it issued its work: " + text_of(std::current_exception()));
    }
  });
  // The cause is the first failure that is not the echo of another one.
  int cause = -1;
  for (int i = 0; i < size(); ++i) {
    const std::exception_ptr& error = errors[static_cast<size_t>(i)];
    if (!error) continue;
    const bool echo = is_comm_error(error);
    if (cause < 0 || (!echo && is_comm_error(errors[static_cast<size_t>(cause)]))) cause = i;
  }
  if (cause >= 0) rethrow_with_prefix(errors[static_cast<size_t>(cause)], replica(cause).device.name() + ": ");
}

void DataParallel::State::require_training(const char* operation) const {
  if (!config.forward_only) return;
  throw ConfigError(
      fmt::format("{}: this engine only evaluates (EngineConfig::forward_only), expected one that trains; construct another", operation));
}

void DataParallel::State::open_communicators() {
  // Evaluation exchanges nothing between devices; processes get their parameters from rank 0.
  if (devices.world_size() < 2 || (config.forward_only && devices.process_count() == 1)) return;
  communicators = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(make_communicators(devices));
  for (int i = 0; i < devices.size(); ++i) {
    const auto wake_peers = [group = communicators, name = devices[i].name()](const std::string& reason) {
      (*group)[0]->abort(name + " failed: " + reason);
    };
    for (ExecContext* ctx : {&devices[i].compute(), &devices[i].copy(), &devices[i].communication()}) ctx->stream().set_error_handler(wake_peers);
  }
}

void DataParallel::State::close_communicators() noexcept {
  for (int i = 0; i < devices.size(); ++i) {
    for (ExecContext* ctx : {&devices[i].compute(), &devices[i].copy(), &devices[i].communication()}) {
      ctx->stream().set_error_handler({});
    }
  }
  communicators.reset();
}

DataParallel::DataParallel(const Model& model, DeviceGroup& devices, const EngineConfig& config, const Capacity& capacity)
    : state_(std::make_unique<State>(model, devices, config)) {
  State& s = *state_;
  const Scheme& scheme = config.scheme;
  if (scheme.output_device < 0 || scheme.output_device >= devices.size()) {
    throw ConfigError(fmt::format("output device: there is no device {} among {}", scheme.output_device, devices.size()));
  }
  for (int i = 0; i < devices.size(); ++i) {
    const bool root = scheme.staging == Staging::device0 && i == 0;
    int64_t images = root ? capacity.micro_batch : capacity.slice[static_cast<size_t>(i)];
    int64_t labels = images;
    if (scheme.loss_at == LossAt::gathered) labels = i == scheme.output_device ? capacity.micro_batch : 0;
    images = std::max(images, capacity.evaluate_slice);
    labels = std::max(labels, capacity.evaluate_slice);
    s.replicas.push_back(std::make_unique<Replica>(devices[i], model, config, s.layout, images, labels, s.updates(i), s.reduces()));
  }
  if (devices.size() > 1 && devices[0].id().backend == Backend::cuda) s.threads = std::make_unique<ReplicaThreads>(devices.size());
  s.open_communicators();
}

DataParallel::~DataParallel() {
  State& s = *state_;
  std::optional<ProcessGroup::Waiting> waiting;
  if (ProcessGroup* process_group = s.devices.process_group(); process_group != nullptr && s.devices.process_count() > 1) {
    // Other processes may still be about their part of what is done here: an abort would fail the whole process group.
    waiting.emplace(*process_group, "the last collectives");
  } else if (s.communicators) {
    (*s.communicators)[0]->abort("the engine ends");
  }
  for (int i = 0; i < s.devices.size(); ++i) {
    try {
      s.devices[i].synchronize();
    } catch (...) {  // check() or finish() would have told
    }
  }
  s.close_communicators();
  try {
    s.devices.synchronize();
  } catch (...) {
  }
  for (int i = 0; i < s.devices.size(); ++i) s.devices[i].compute().release_workspace();
}

int DataParallel::size() const { return state_->size(); }
const FlatLayout& DataParallel::layout() const { return state_->layout; }
std::string DataParallel::communicator() const { return state_->communicators ? (*state_->communicators)[0]->description() : std::string(); }
const std::vector<Tensor>& DataParallel::outputs() const { return state_->outputs; }

void DataParallel::require_training(const char* operation) const { state_->require_training(operation); }

void DataParallel::begin_step(int64_t step) {
  state_->require_training("begin_step");
  state_->step = step;
  state_->for_each([&](Replica& r) {
    r.scaler->reset();
    for (ExecContext* ctx : {&r.compute(), &r.copy(), &r.communication()}) ctx->set_step(step);
    r.compute().mark_step();
    r.has_gradients = false;
    r.next_bucket = 0;
    const PhaseScope phase(r.compute(), Phase::loss);
    zero(r.compute(), r.tail());
    static constexpr float kVote = 1.0F;
    if (state_->votes_to_stop && r.ordinal == 0) copy(r.compute(), ConstView(&kVote, {1}, DType::f32, DeviceId::host()), r.stop_votes());
    static constexpr int32_t kNone = -1;
    if (state_->watches) copy(r.compute(), ConstView(&kNone, {1}, DType::i32, DeviceId::host()), r.overflowed);
  });
}

void DataParallel::State::next_micro_batch() {
  for (auto& r : replicas) {
    if (micro_batch > 0) r->compute().record(*r->slot(micro_batch).used);
    r->forget_micro_batch();
  }
  std::fill(outputs.begin(), outputs.end(), Tensor());
  std::fill(output_gradients.begin(), output_gradients.end(), Tensor());
  gathered = Tensor();
  ++micro_batch;
}

void DataParallel::State::stage(Replica& r, const HostBatch& batch, int64_t first, int64_t at, int64_t total) {
  ExecContext& ctx = r.copy();
  StagingSlot& slot = r.slot(micro_batch);
  StagingSlot& root_slot = replica(0).slot(micro_batch);
  const bool by_device0 = config.scheme.staging == Staging::device0;
  const bool via_root = by_device0 && r.ordinal != 0;
  const bool whole = by_device0 && r.ordinal == 0;
  const int64_t held = whole ? total : r.samples;
  const PhaseScope phase(ctx, via_root ? Phase::scatter : Phase::stage);
  ctx.wait(*slot.used, "compute");
  if (whole) {
    for (auto& other : replicas) ctx.wait(*other->slot(micro_batch).staged, "scatter");
  }
  if (via_root) ctx.wait(*root_slot.staged, "stage on device 0");
  const auto bring = [&](const ConstView& from_host, const Tensor& in_root, const Tensor& to) {
    if (held == 0) return;
    vitrine::copy(ctx, via_root ? ConstView(in_root.view().rows(at, at + held)) : from_host.rows(first + at, first + at + held),
                  to.view().rows(0, held));
  };
  bring(batch.images, root_slot.images, slot.images);
  if (config.scheme.loss_at == LossAt::parallel) {
    bring(batch.labels, root_slot.labels, slot.labels);
    if (r.samples > 0) r.targets = slot.labels.rows(0, r.samples).reshape({r.samples * model.targets_per_sample});
  } else if (r.ordinal == config.scheme.output_device) {
    vitrine::copy(ctx, batch.labels.rows(first, first + total), slot.labels.view().rows(0, total));
    r.targets = slot.labels.rows(0, total).reshape({total * model.targets_per_sample});
  }
  ctx.record(*slot.staged);
}

void DataParallel::State::prepare_input(Replica& r) {
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
  r.input = ctx.allocate(model.input_shape(r.samples), dtype, Category::activations, "input");
  if (config.image_dtype == DType::f32) {
    cast(ctx, images, r.input);
  } else {
    resize_normalize(ctx, config.normalization, images, r.input);
  }
}

void DataParallel::vote_to_stop() { state_->votes_to_stop = true; }

void DataParallel::scatter(const HostBatch& batch, std::span<const int64_t> sizes, int64_t first, std::optional<int64_t> position) {
  State& s = *state_;
  s.next_micro_batch();
  s.sizes.assign(sizes.begin(), sizes.end());
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  int64_t at = 0;
  s.for_each([&](Replica& r) {
    r.samples = sizes[static_cast<size_t>(r.ordinal)];
    r.first_sample = position.value_or(first) + at;
    s.stage(r, batch, first, at, total);
    at += r.samples;
  });
  s.for_each_at_once([&](Replica& r) { s.prepare_input(r); });
}

/// Numbers as describe_non_finite() explains them: parameters, the input, then parts.
void DataParallel::State::find_non_finite_before(Replica& r, const Tensor& input) {
  for (size_t i = 0; i < r.parameter_views.size(); ++i) find_non_finite(r.compute(), r.parameter_views[i], static_cast<int32_t>(i), r.overflowed);
  find_non_finite(r.compute(), input, static_cast<int32_t>(r.parameter_views.size()), r.overflowed);
}

std::string DataParallel::describe_non_finite(int32_t found) const {
  const FlatLayout& parameters = state_->layout;
  if (found < parameters.size()) return "parameter " + parameters.specs()[static_cast<size_t>(found)].name;
  if (found == parameters.size()) return "the input";
  return "the output of " + state_->model.net->parts()[static_cast<size_t>(found - parameters.size() - 1)].name;
}

void DataParallel::forward(bool training) {
  State& s = *state_;
  if (training) s.require_training("forward for training");
  s.training = training;
  const bool gathers = training && s.config.scheme.loss_at == LossAt::gathered;
  const auto samples_end = s.sizes.begin() + s.config.scheme.output_device;
  const int64_t before = s.model.targets_per_sample * std::accumulate(s.sizes.begin(), samples_end, int64_t{0});
  const int64_t total = std::accumulate(s.sizes.begin(), s.sizes.end(), int64_t{0});
  s.for_each_at_once([&](Replica& r) {
    if (r.samples == 0) return;
    const PhaseScope phase(r.compute(), Phase::forward);
    const Pass pass{training, s.config.seed, s.step, r.first_sample};
    const Tensor input = std::move(r.input);
    Sequential::OutputReady observe;
    if (training && s.watches) {
      s.find_non_finite_before(r, input);
      observe = [&r, first = s.layout.size() + 1](int part, const Tensor& output) {
        find_non_finite(r.compute(), output, first + part, r.overflowed);
      };
    }
    Tensor& output = s.outputs[static_cast<size_t>(r.ordinal)];
    const Shape logits = s.model.logits_shape(r.samples);
    if (gathers && &r == &s.output_replica()) {
      s.gathered = r.compute().allocate(s.model.logits_shape(total), s.config.precision.compute, Category::activations, "gathered outputs");
      output = s.gathered.rows(before, before + logits[0]);
    }
    r.saved = s.model.net->forward_from(r.compute(), r.parameter_views, input, output, pass, observe, s.cuts);
    output = output.reshape(logits);
    if (!training) r.saved = Saved();
  });
}

Tensor DataParallel::gather(int device) {
  State& s = *state_;
  Replica& target = s.replica(device);
  ExecContext& ctx = target.compute();
  const PhaseScope phase(ctx, Phase::gather);
  const int64_t total = std::accumulate(s.sizes.begin(), s.sizes.end(), int64_t{0});
  Tensor gathered;
  if (s.gathered && &target == &s.output_replica()) {
    gathered = std::exchange(s.gathered, {});
  } else {
    gathered = ctx.allocate(s.model.logits_shape(total), s.config.precision.compute, Category::activations, "gathered outputs");
  }
  int64_t at = 0;
  for (auto& r : s.replicas) {
    if (r->samples == 0) continue;
    const Tensor& output = s.outputs[static_cast<size_t>(r->ordinal)];
    const Tensor rows = gathered.rows(at, at + output.shape()[0]);
    if (r.get() != &target) {
      r->compute().record(*r->outputs_ready);
      ctx.wait(*r->outputs_ready, "forward of another device");
    }
    if (output.view().data != rows.view().data) copy(ctx, output, rows);
    at += output.shape()[0];
  }
  ctx.record(*target.outputs_read);
  for (auto& r : s.replicas) {
    if (r->samples == 0 || r.get() == &target) continue;
    const PhaseScope gather_phase(r->compute(), Phase::gather);
    r->compute().wait(*target.outputs_read, "gather");
  }
  return gathered;
}

void DataParallel::State::hand_out_gradients(const Tensor& gradients, int device) {
  Replica& source = replica(device);
  source.compute().record(*source.loss_ready);
  int64_t at = 0;
  for_each([&](Replica& r) {
    if (r.samples == 0) return;
    ExecContext& ctx = r.compute();
    const PhaseScope phase(ctx, Phase::scatter_grad);
    const Tensor& output = outputs[static_cast<size_t>(r.ordinal)];
    Tensor& gradient = output_gradients[static_cast<size_t>(r.ordinal)];
    const Tensor rows = gradients.rows(at, at + output.shape()[0]);
    at += output.shape()[0];
    if (&r == &source) {
      gradient = rows;
      return;
    }
    gradient = gradient_over_output ? output : ctx.allocate(output.shape(), output.dtype(), Category::activations, "gradient of outputs");
    ctx.wait(*source.loss_ready, "loss");
    copy(ctx, rows, gradient);
    ctx.record(*r.gradients_taken);
  });
  handed_out = gradients;
  handed_out_device = device;
}

void DataParallel::State::release_handed_out() {
  Replica& source = replica(handed_out_device);
  const PhaseScope phase(source.compute(), Phase::scatter_grad);
  for (auto& r : replicas) {
    if (r->samples > 0 && r.get() != &source) source.compute().wait(*r->gradients_taken, "scatter_grad");
  }
  handed_out = Tensor();
}

void DataParallel::set_output_gradients(const Tensor& gradients, int device) { state_->hand_out_gradients(gradients, device); }

void DataParallel::add_totals(const Tensor& totals, int device) {
  Replica& r = state_->replica(device);
  const PhaseScope phase(r.compute(), Phase::loss);
  add(r.compute(), totals, r.totals(), r.totals());
}

void DataParallel::State::loss_of(Replica& r, const Tensor& logits, const View& gradients, const View& totals) {
  const PhaseScope phase(r.compute(), Phase::loss);
  const CrossEntropyConfig loss_config{config.ignore_index, 1.0F / static_cast<float>(nominal_targets())};
  softmax_cross_entropy(r.compute(), loss_config, logits, r.targets, gradients ? r.scaler->scale() : View(), gradients, totals);
}

void DataParallel::loss() {
  State& s = *state_;
  // Over the logits, or beside them.
  const auto gradient_of = [&](Replica& r, const Tensor& logits) {
    const PhaseScope phase(r.compute(), Phase::loss);
    return s.gradient_over_output ? logits : r.compute().allocate(logits.shape(), logits.dtype(), Category::activations, "gradient of outputs");
  };
  if (s.config.scheme.loss_at == LossAt::parallel) {
    s.for_each_at_once([&](Replica& r) {
      if (r.samples == 0) return;
      const Tensor& logits = s.outputs[static_cast<size_t>(r.ordinal)];
      Tensor& gradient = s.output_gradients[static_cast<size_t>(r.ordinal)];
      gradient = gradient_of(r, logits);
      s.loss_of(r, logits, gradient, r.totals());
    });
    return;
  }
  const int device = s.config.scheme.output_device;
  const Tensor gathered = gather(device);
  const Tensor gradient = gradient_of(s.output_replica(), gathered);
  s.loss_of(s.output_replica(), gathered, gradient, s.output_replica().totals());
  s.hand_out_gradients(gradient, device);
}

DataParallel::NoReductionScope::NoReductionScope(DataParallel& parallel)
    : parallel_(parallel), previous_(std::exchange(parallel.state_->reduction_on, false)) {}
DataParallel::NoReductionScope::~NoReductionScope() { parallel_.state_->reduction_on = previous_; }

void DataParallel::evaluate(const HostBatch& batch, std::span<const int64_t> sizes) {
  State& s = *state_;
  s.next_micro_batch();
  s.sizes.assign(sizes.begin(), sizes.end());
  int64_t at = 0;
  s.for_each([&](Replica& r) {
    r.samples = sizes[static_cast<size_t>(r.ordinal)];
    const PhaseScope phase(r.compute(), Phase::evaluate);
    zero(r.compute(), r.evaluate_totals);
    if (r.samples == 0) return;
    StagingSlot& slot = r.slot(s.micro_batch);
    ExecContext& ctx = r.copy();
    const PhaseScope stage_phase(ctx, Phase::stage);
    ctx.wait(*slot.used, "compute");
    if (s.config.scheme.staging == Staging::device0 && r.ordinal == 0) {
      // Copies of an earlier micro-batch to the other devices may still read this slot.
      for (auto& other : s.replicas) ctx.wait(*other->slot(s.micro_batch).staged, "scatter");
    }
    copy(ctx, batch.images.rows(at, at + r.samples), slot.images.view().rows(0, r.samples));
    copy(ctx, batch.labels.rows(at, at + r.samples), slot.labels.view().rows(0, r.samples));
    ctx.record(*slot.staged);
    r.targets = slot.labels.rows(0, r.samples).reshape({r.samples * s.model.targets_per_sample});
    at += r.samples;
    s.prepare_input(r);
  });
  forward(false);
  s.for_each_at_once([&](Replica& r) {
    if (r.samples == 0) return;
    const PhaseScope phase(r.compute(), Phase::evaluate);
    s.loss_of(r, s.outputs[static_cast<size_t>(r.ordinal)], View(), r.evaluate_totals);
  });
}

void DataParallel::read_evaluation(std::span<float> totals_of_devices, float* outputs) {
  State& s = *state_;
  const int64_t samples = std::accumulate(s.sizes.begin(), s.sizes.end(), int64_t{0});
  const DType dtype = s.config.precision.compute;
  const bool widens = outputs != nullptr && dtype != DType::f32;
  std::vector<std::byte> narrow(widens ? static_cast<size_t>(s.model.logits_shape(samples).numel() * size_of(dtype)) : 0);
  std::byte* const target = widens ? narrow.data() : reinterpret_cast<std::byte*>(outputs);
  int64_t at = 0;
  s.for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::evaluate);
    float* totals = totals_of_devices.data() + r.ordinal * LossTotals::kCount;
    copy(r.compute(), r.evaluate_totals, View{totals, {LossTotals::kCount}, DType::f32, DeviceId::host()});
    if (outputs != nullptr && r.samples > 0) {
      const Tensor& logits = s.outputs[static_cast<size_t>(r.ordinal)];
      copy(r.compute(), logits, View{target + at * size_of(dtype), logits.shape(), dtype, DeviceId::host()});
      at += logits.numel();
    }
  });
  s.devices.synchronize();
  note_host_read(s.devices, "read_evaluation", ConstView(totals_of_devices.data(), {s.size() * LossTotals::kCount}, DType::f32, DeviceId::host()));
  if (outputs != nullptr) note_host_read(s.devices, "read_evaluation", ConstView(target, {at}, dtype, DeviceId::host()));
  if (widens) widen_on_host(dtype, narrow.data(), at, outputs);
}

}  // namespace vitrine
