// SPDX-License-Identifier: Apache-2.0
// The state of training in host memory, to and from the devices and the files of a checkpoint.
#include "nn/parallel/training_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/engine_state.h"
#include "runtime/copy.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

constexpr const char* kParameters = "parameters";
constexpr const char* kAverage = "average";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";

/// The names of the optimizer's states, as in PyTorch.
std::vector<std::string> state_names(const OptimizerConfig& optimizer) {
  switch (optimizer.state_count()) {
    case 0:
      return {};
    case 1:
      return {"momentum_buffer"};
    default:
      return {"exp_avg", "exp_avg_sq"};
  }
}

/// Names of all flat buffers but the parameters.
std::vector<std::string> state_names(const OptimizerConfig& optimizer, bool averages) {
  std::vector<std::string> names = state_names(optimizer);
  if (averages) names.emplace_back(kAverage);
  return names;
}

std::optional<double> momentum_of(const OptimizerConfig& optimizer) {
  if (optimizer.kind != OptimizerConfig::Kind::sgd) return optimizer.adam_kernel().beta1;
  return optimizer.state_count() > 0 ? std::optional(optimizer.sgd.momentum) : std::nullopt;
}

View view_of(TrainingState::Flat& flat) { return flat.memory.view({static_cast<int64_t>(flat.values().size())}, DType::f32); }

/// What travels from rank 0 to the other processes beside the tensors.
struct Counters {
  int64_t step, updates, skipped_in_row;
  double learning_rate, momentum;
  int64_t growth_tracker;
  float loss_scale;
};

}  // namespace

std::span<float> TrainingState::Flat::values() {
  const int64_t elements = memory.bytes() / size_of(DType::f32);
  return {memory.view({elements}, DType::f32).as<float>(), static_cast<size_t>(elements)};
}

std::span<const float> TrainingState::Flat::values() const {
  const int64_t elements = memory.bytes() / size_of(DType::f32);
  return {memory.view({elements}, DType::f32).as<float>(), static_cast<size_t>(elements)};
}

const TrainingState::Flat& TrainingState::flat(const std::string& name) const {
  const auto found = std::find_if(flats.begin(), flats.end(), [&](const Flat& flat) { return flat.name == name; });
  VITRINE_ASSERT(found != flats.end(), "a state has the flat buffers of its optimizer");
  return *found;
}

TrainingState::Flat& TrainingState::flat(const std::string& name) { return const_cast<Flat&>(std::as_const(*this).flat(name)); }

std::vector<std::pair<std::string, int64_t>> training_state_bytes(const FlatLayout& layout, const BufferLayout& buffers, const OptimizerConfig& optimizer,
                                                                  bool averages) {
  const int64_t bytes = layout.parameter_elements() * size_of(DType::f32);
  std::vector<std::pair<std::string, int64_t>> parts = {{kParameters, bytes}};
  for (const std::string& name : state_names(optimizer, averages)) parts.emplace_back(name, bytes);
  const auto counters = static_cast<int64_t>(buffers.counters().size() * sizeof(int64_t));
  if (buffers.any_saved()) parts.emplace_back("buffers", buffers.saved().parameter_elements() * size_of(DType::f32) + counters);
  return parts;
}

std::vector<CheckpointFile> checkpoint_files(const FlatLayout& layout, const BufferLayout& buffers, const TrainingState& state, std::span<float> scratch,
                                             const std::map<std::string, std::string>& metadata) {
  CheckpointFile model{kModelFile, counter_sources(buffers, state.buffers), metadata}, optimizer{kOptimizerFile, {}, {}};
  for (const TrainingState::Flat& flat : state.flats) {
    const bool is_parameters = flat.name == kParameters;
    std::vector<TensorSource> sources = tensor_sources(layout, flat.values(), is_parameters ? std::string() : flat.name, scratch);
    std::vector<TensorSource>& tensors = is_parameters ? model.tensors : optimizer.tensors;
    tensors.insert(tensors.end(), std::make_move_iterator(sources.begin()), std::make_move_iterator(sources.end()));
  }
  std::vector<TensorSource> saved = tensor_sources(buffers.saved(), state.buffers.values, "", scratch);
  model.tensors.insert(model.tensors.end(), std::make_move_iterator(saved.begin()), std::make_move_iterator(saved.end()));
  std::vector<CheckpointFile> files;
  files.push_back(std::move(model));
  files.push_back(std::move(optimizer));
  return files;
}

void read_checkpoint_files(const std::string& folder, const FlatLayout& layout, const BufferLayout& buffers, const std::vector<std::string>& saved,
                           TrainingState& state) {
  const std::span<const float> parameters = state.flat(kParameters).values();
  load_parameters(fmt::format("{}/{}", folder, kModelFile), layout, state.flat(kParameters).values(), buffers, state.buffers, true);
  const std::string path = fmt::format("{}/{}", folder, kOptimizerFile);
  const std::map<std::string, HostTensor> tensors = saved.empty() ? std::map<std::string, HostTensor>() : read_safetensors(path);
  for (TrainingState::Flat& flat : state.flats) {
    if (flat.name == kParameters) continue;
    const std::span<float> values = flat.values();
    if (std::find(saved.begin(), saved.end(), flat.name) != saved.end()) {
      read_tensors(path, tensors, layout, flat.name, values);
    } else if (flat.name == kAverage) {
      std::copy(parameters.begin(), parameters.end(), values.begin());
    } else {
      std::fill(values.begin(), values.end(), 0.0F);
    }
  }
}

std::vector<Engine::State::FlatState> Engine::State::flat_states(Replica& r) {
  std::vector<FlatState> states = {{kParameters, r.parameters}};
  const std::vector<std::string> names = state_names(config.optimizer);
  if (!names.empty()) states.push_back({names[0], r.state1});
  if (names.size() > 1) states.push_back({names[1], r.state2});
  if (config.ema_decay > 0.0) states.push_back({kAverage, r.average});
  return states;
}

Replica& Engine::State::updating_replica(const char* operation) {
  for (auto& r : replicas) {
    if (r->updates()) return *r;
  }
  throw UnsupportedError(fmt::format("{}: no device of this process updates the parameters, so none holds the optimizer's state", operation));
}

TrainingState Engine::make_state() const {
  const State& s = *state_;
  s.require_training("make_state");
  TrainingState state;
  const int64_t bytes = s.layout.parameter_elements() * size_of(DType::f32);
  state.flats.push_back({kParameters, HostBuffer(bytes, s.devices.host_memory())});
  for (const std::string& name : state_names(s.config.optimizer, s.config.ema_decay > 0.0)) {
    state.flats.push_back({name, HostBuffer(bytes, s.devices.host_memory())});
  }
  state.buffers = s.buffer_layout.initial();
  return state;
}

void Engine::copy_state(TrainingState& into) {
  State& s = state_->drain();
  s.require_training("copy_state");
  s.check_state(into, "copy_state");
  Replica& r = s.updating_replica("copy_state");
  int32_t updates = 0;
  const View to_updates(&updates, {1}, DType::i32, DeviceId::host());
  {
    const PhaseScope phase(r.compute(), Phase::checkpoint);
    for (const State::FlatState& flat : s.flat_states(r)) copy(r.compute(), flat.on_device, view_of(into.flat(flat.name)));
    copy(r.compute(), r.updates_done, to_updates);
  }
  s.devices.synchronize();
  for (TrainingState::Flat& flat : into.flats) note_host_read(s.devices, "copy_state", view_of(flat));
  note_host_read(s.devices, "copy_state", to_updates);
  into.buffers = {r.buffers ? s.read_flat(r, r.buffers) : std::vector<float>(), s.counters};
  into.step = s.steps;
  into.updates = updates;
  into.skipped_in_row = s.skipped_in_row;
  into.learning_rate = s.config.optimizer.learning_rate();
  into.momentum = momentum_of(s.config.optimizer);
  into.loss_scale.reset();
  if (r.scaler->state()) into.loss_scale = loss_scale_state();
}

TrainingState Engine::state() {
  TrainingState state = make_state();
  copy_state(state);
  return state;
}

void Engine::State::check_state(const TrainingState& state, const char* operation) const {
  std::vector<std::string> expected, found;
  const int64_t bytes = layout.parameter_elements() * size_of(DType::f32);
  expected.push_back(fmt::format("{} of {} bytes", kParameters, bytes));
  for (const std::string& name : state_names(config.optimizer, config.ema_decay > 0.0)) expected.push_back(fmt::format("{} of {} bytes", name, bytes));
  for (const TrainingState::Flat& flat : state.flats) found.push_back(fmt::format("{} of {} bytes", flat.name, flat.memory.bytes()));
  if (expected != found) {
    throw ConfigError(fmt::format("{}: the state has {}, expected {} for this model and optimizer; make it with make_state() of an engine like this",
                                  operation, fmt::join(found, ", "), fmt::join(expected, ", ")));
  }
}

void Engine::load_state(const TrainingState& state) {
  State& s = state_->drain();
  s.require_training("load_state");
  s.check_state(state, "load_state");
  const std::optional<double> momentum = momentum_of(s.config.optimizer);
  const bool scales = static_cast<bool>(s.replica(0).scaler->state());
  const auto [scale, tracker] = state.loss_scale.value_or(scales ? loss_scale_state() : std::pair{1.0F, int32_t{0}});
  Counters counters{state.step,    state.updates, state.skipped_in_row, state.learning_rate, state.momentum.value_or(momentum.value_or(0.0)),
                    int64_t{tracker}, scale};
  if (s.devices.process_count() > 1) {
    const std::string bytes =
        s.devices.process_group()->broadcast("the training state", std::string(reinterpret_cast<const char*>(&counters), sizeof counters));
    if (bytes.size() != sizeof counters) throw CommError("load_state: rank 0 sent a state of another size; do all run the same version?");
    std::memcpy(&counters, bytes.data(), sizeof counters);
  }
  s.set_parameters(state.flat(kParameters).values());
  s.set_buffers(state.buffers);
  s.set_optimizer_states(state, static_cast<int32_t>(counters.updates));
  if (scales) s.for_each([&](Replica& r) { r.scaler->set_state(r.compute(), counters.loss_scale, static_cast<int32_t>(counters.growth_tracker)); });
  s.steps = s.first_step = counters.step;
  s.skipped_in_row = static_cast<int>(counters.skipped_in_row);
  s.config.optimizer.set_learning_rate(counters.learning_rate);
  if (momentum) s.config.optimizer.set_momentum(counters.momentum);
}

void Engine::State::set_optimizer_states(const TrainingState& state, int32_t updates) {
  const ConstView from_updates(&updates, {1}, DType::i32, DeviceId::host());
  for_each([&](Replica& r) {
    if (!r.updates()) return;
    const PhaseScope phase(r.compute(), Phase::replicate);
    for (const FlatState& flat : flat_states(r)) {
      if (flat.name == kParameters) continue;
      const std::span<const float> values = state.flat(flat.name).values();
      copy(r.compute(), ConstView(values.data(), flat.on_device.shape, DType::f32, DeviceId::host()), flat.on_device);
    }
    copy(r.compute(), from_updates, r.updates_done);
  });
  devices.synchronize();
  if (devices.process_count() == 1) return;
  const ProcessGroup::Waiting waiting(*devices.process_group(), "the optimizer's state of rank 0");
  for (const std::string& name : state_names(config.optimizer, config.ema_decay > 0.0)) {
    for_each_at_once([&](Replica& r) {
      const PhaseScope phase(r.communication(), Phase::replicate, "optimizer state");
      for (const FlatState& flat : flat_states(r)) {
        if (flat.name == name) r.reduction.communicator->broadcast(r.communication(), flat.on_device, 0);
      }
    });
  }
  devices.synchronize();
}

}  // namespace vitrine
