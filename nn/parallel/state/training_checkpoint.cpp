// SPDX-License-Identifier: Apache-2.0
// The state of training in host memory, to and from the devices and the files of a checkpoint.
#include "nn/parallel/state/training_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/replicas/host_copies.h"
#include "nn/parallel/state/parameters.h"
#include "nn/parallel/state/process_shards.h"
#include "nn/parallel/step/step_window.h"
#include "runtime/copy.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

constexpr const char* kParameters = "parameters";
constexpr const char* kAverages = "ema";
constexpr const char* kBuffers = "buffers";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kAveragesFile = "ema.safetensors";

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

std::optional<double> momentum_of(const OptimizerConfig& optimizer) {
  if (optimizer.kind != OptimizerConfig::Kind::sgd) return optimizer.adam_kernel().beta1;
  return optimizer.state_count() > 0 ? std::optional(optimizer.sgd.momentum) : std::nullopt;
}

bool is_replicated(const std::string& name) { return name == kParameters || name == kBuffers; }

bool is_optimizer_state(const std::string& name) { return name != kAverages && !is_replicated(name); }

/// The tensors of a weights file.
std::vector<TensorSource> weights_sources(const FlatLayout& layout, const BufferLayout& buffers,
                                          const TrainingState& state, const TrainingState::Flat& weights,
                                          std::span<float> scratch) {
  std::vector<TensorSource> sources;
  // The largest elements come first, so that all tensors are aligned.
  for (size_t i = 0; i < state.counters.size(); ++i) {
    const auto bytes = [&counter = state.counters[i]] {
      return std::span<const std::byte>(std::as_bytes(std::span(&counter, 1)));
    };
    sources.push_back({buffers.counters()[i], Shape{}, DType::i64, bytes});
  }
  std::vector<TensorSource> more = tensor_sources(layout, state.flat(kParameters).values(), {}, scratch);
  if (&weights != &state.flat(kParameters)) {  // averages, which frozen parameters do not have
    for (TensorSource& source : tensor_sources(layout.trained(), weights.values(), {}, scratch)) {
      const auto same = [&](const TensorSource& other) { return other.name == source.name; };
      *std::ranges::find_if(more, same) = std::move(source);
    }
  }
  sources.insert(sources.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  if (!state.has_flat(kBuffers)) return sources;
  more = tensor_sources(buffers.saved(), state.flat(kBuffers).values(), {}, scratch);
  sources.insert(sources.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return sources;
}

View view_of(TrainingState::Flat& flat) {
  return flat.memory.view({static_cast<int64_t>(flat.values().size())}, DType::f32);
}

/// Scalars that rank 0 broadcasts with the tensors.
struct Counters {
  int64_t step, updates, skipped_in_row;
  double learning_rate, momentum;
  int64_t growth_tracker;
  float loss_scale;
};

/// A flat buffer of a replica that a checkpoint contains.
struct FlatState {
  std::string name;
  View on_device;
  Shard pieces;  // of the whole buffer that it has
};

/// Those of a replica that updates the parameters, in the order of TrainingState::flats.
std::vector<FlatState> flat_states(const OptimizerConfig& optimizer, Replica& r) {
  const Shard& own = r.optimizer.shard;
  std::vector<FlatState> states = {{kParameters, r.model.parameters, r.model.parameter_shard}};
  const std::vector<std::string> names = state_names(optimizer);
  if (!names.empty()) states.push_back({names[0], r.optimizer.state1, own});
  if (names.size() > 1) states.push_back({names[1], r.optimizer.state2, own});
  if (r.optimizer.average) states.push_back({kAverages, r.optimizer.average, own});
  if (r.model.buffers) states.push_back({kBuffers, r.model.buffers, Shard{{.end = r.model.buffers.shape().numel()}}});
  return states;
}

/// The first replica of this process that runs the optimizer. throws UnsupportedError if none does.
Replica& updating_replica(ReplicaGroup& replicas, const char* operation) {
  for (auto& r : replicas) {
    if (r->updates()) return *r;
  }
  throw UnsupportedError(fmt::format(
      "{}: no device of this process updates the parameters, so none holds the optimizer's state", operation));
}

/// throws ConfigError unless the state has the flat buffers of an engine with this setup.
void check_state(const EngineSetup& setup, const TrainingState& state, const char* operation) {
  std::vector<std::string> expected, found;
  for (const auto& [name, bytes] : training_state_bytes(setup.layout, setup.buffer_layout, setup.config))
    expected.push_back(fmt::format("{} of {} bytes", name, bytes));
  for (const TrainingState::Flat& flat : state.flats)
    found.push_back(fmt::format("{} of {} bytes", flat.name, flat.memory.bytes()));
  if (expected != found || state.counters.size() != setup.buffer_layout.counters().size()) {
    throw ConfigError(
        fmt::format("{}: the state has {}, expected {} for this model and optimizer; make it with make_state() of an "
                    "engine like this",
                    operation, fmt::join(found, ", "), fmt::join(expected, ", ")));
  }
}

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
  const auto found = std::ranges::find_if(flats, [&](const Flat& flat) { return flat.name == name; });
  VITRINE_ASSERT(found != flats.end(), "a state has the flat buffers of its optimizer");
  return *found;
}

bool TrainingState::has_flat(const std::string& name) const {
  return std::ranges::any_of(flats, [&](const Flat& flat) { return flat.name == name; });
}

std::vector<std::string> TrainingState::optimizer_states() const {
  std::vector<std::string> names;
  for (const Flat& flat : flats) {
    if (is_optimizer_state(flat.name)) names.push_back(flat.name);
  }
  return names;
}

TrainingState::Flat& TrainingState::flat(const std::string& name) {
  return const_cast<Flat&>(std::as_const(*this).flat(name));
}

std::vector<std::pair<std::string, int64_t>> training_state_bytes(const FlatLayout& layout, const BufferLayout& buffers,
                                                                  const EngineConfig& config) {
  const int64_t bytes = layout.parameter_elements() * size_of(DType::f32),
                trained_bytes = layout.trained_elements() * size_of(DType::f32),
                buffer_bytes = buffers.saved().parameter_elements() * size_of(DType::f32);
  std::vector<std::pair<std::string, int64_t>> parts = {{kParameters, bytes}};
  for (const std::string& name : state_names(config.optimizer)) parts.emplace_back(name, trained_bytes);
  if (config.ema_decay > 0.0) parts.emplace_back(kAverages, trained_bytes);
  if (buffer_bytes > 0) parts.emplace_back(kBuffers, buffer_bytes);
  return parts;
}

int64_t checkpoint_scratch_elements(const FlatLayout& layout, const BufferLayout& buffers) {
  return std::max(reordered_elements(layout), reordered_elements(buffers.saved()));
}

std::vector<CheckpointFile> checkpoint_files(const FlatLayout& layout, const BufferLayout& buffers,
                                             const TrainingState& state, std::span<float> scratch,
                                             const std::map<std::string, std::string>& metadata) {
  std::vector<CheckpointFile> files;
  files.push_back({kModelFile, weights_sources(layout, buffers, state, state.flat(kParameters), scratch), metadata});
  CheckpointFile& optimizer = files.emplace_back(CheckpointFile{kOptimizerFile, {}, {}});
  for (const std::string& name : state.optimizer_states()) {
    std::vector<TensorSource> sources = tensor_sources(layout.trained(), state.flat(name).values(), name, scratch);
    optimizer.tensors.insert(optimizer.tensors.end(), std::make_move_iterator(sources.begin()),
                             std::make_move_iterator(sources.end()));
  }
  if (!state.has_flat(kAverages)) return files;
  files.push_back({kAveragesFile, weights_sources(layout, buffers, state, state.flat(kAverages), scratch), metadata});
  return files;
}

void read_checkpoint_files(const std::string& folder, const FlatLayout& layout, const BufferLayout& buffers,
                           TrainingState& state) {
  // Padding is zero.
  for (TrainingState::Flat& flat : state.flats) std::ranges::fill(flat.values(), 0.0F);
  BufferValues values;
  load_parameters(fmt::format("{}/{}", folder, kModelFile), layout, state.flat(kParameters).values(), buffers, values,
                  {.allow_non_finite = true});
  state.counters = values.counters;
  if (state.has_flat(kBuffers)) std::ranges::copy(values.values, state.flat(kBuffers).values().begin());
  if (state.has_flat(kAverages)) {
    const std::string path = fmt::format("{}/{}", folder, kAveragesFile);
    std::error_code ignored;
    const bool exists = std::filesystem::exists(path, ignored);
    const std::span<float> averages = state.flat(kAverages).values();
    std::vector<float> all(static_cast<size_t>(layout.parameter_elements()));  // with the frozen parameters
    load_parameters(exists ? path : fmt::format("{}/{}", folder, kModelFile), layout, all, buffers, values,
                    {.allow_non_finite = true});
    std::copy_n(all.begin(), averages.size(), averages.begin());
  }
  const std::string path = fmt::format("{}/{}", folder, kOptimizerFile);
  const std::map<std::string, HostTensor> tensors = read_safetensors(path);
  for (const std::string& name : state.optimizer_states())
    read_tensors(path, tensors, layout.trained(), name, state.flat(name).values());
}

TrainingState Checkpointer::make_state() const {
  setup_.require_training("make_state");
  TrainingState state;
  for (const auto& [name, bytes] : training_state_bytes(setup_.layout, setup_.buffer_layout, setup_.config)) {
    state.flats.push_back({name, HostBuffer(bytes, setup_.devices.host_memory())});
  }
  state.counters.resize(setup_.buffer_layout.counters().size());
  return state;
}

void Checkpointer::copy_state(TrainingState& into) {
  window_.drain();
  setup_.require_training("copy_state");
  if (parameters_.averages().in_place()) throw OrderError("copy_state: an AverageScope is open; close it first");
  check_state(setup_, into, "copy_state");
  if (setup_.sharded() && setup_.peers() != nullptr && setup_.devices.process() != 0) {
    throw UnsupportedError(
        fmt::format("copy_state: rank {} holds a part of the optimizer's states; call copy_state() on rank 0, and "
                    "share_state() here",
                    setup_.devices.process()));
  }
  Replica& r = updating_replica(replicas_, "copy_state");
  int32_t updates = 0;
  const View to_updates{&updates, {1}, DType::i32, DeviceId::host()};
  {
    for (auto& owner : replicas_) {
      const PhaseScope phase(owner->compute(), Phase::checkpoint);
      for (const FlatState& flat : flat_states(setup_.config.optimizer, *owner)) {
        for (const ShardPiece& piece : flat.pieces) {
          if (piece.shared && owner.get() != &r) continue;
          copy(owner->compute(), piece.of_states(flat.on_device), piece.of_parameters(view_of(into.flat(flat.name))));
        }
      }
    }
    const PhaseScope phase(r.compute(), Phase::checkpoint);
    copy(r.compute(), r.optimizer.updates_done, to_updates);
  }
  setup_.devices.synchronize();
  for (TrainingState::Flat& flat : into.flats) note_host_read(setup_.devices, "copy_state", view_of(flat));
  note_host_read(setup_.devices, "copy_state", to_updates);
  gather_states(&into);
  const TrainingProgress& progress = window_.progress();
  into.counters = progress.counters;
  into.step = progress.steps;
  into.updates = updates;
  into.skipped_in_row = progress.skipped_in_row;
  into.learning_rate = setup_.config.optimizer.learning_rate();
  into.momentum = momentum_of(setup_.config.optimizer);
  into.loss_scale.reset();
  if (r.scaler->state()) into.loss_scale = loss_scale_state();
}

void Checkpointer::share_state() {
  if (!setup_.sharded() || setup_.peers() == nullptr) return;
  window_.drain();
  gather_states(nullptr);
}

void Checkpointer::gather_states(TrainingState* into) {
  const std::vector<FlatState> flats = flat_states(setup_.config.optimizer, replicas_[0]);
  for (size_t i = 0; i < flats.size(); ++i) {
    const std::string& name = flats[i].name;
    if (is_replicated(name) && !(name == kParameters && replicas_[0].reducer_context.shards_masters())) continue;
    gather_shards(
        setup_, replicas_, "the state " + name, Receivers::rank0,
        [&](Replica& r, const ShardPiece& piece) {
          return piece.of_states(flat_states(setup_.config.optimizer, r)[i].on_device);
        },
        [&](int64_t begin, std::span<const float> values) {
          std::ranges::copy(values, into->flat(name).values().begin() + begin);
        });
  }
}

TrainingState Checkpointer::state() {
  TrainingState state = make_state();
  copy_state(state);
  return state;
}

void Checkpointer::load_state(const TrainingState& state) {
  window_.drain();
  setup_.require_training("load_state");
  if (parameters_.averages().in_place()) throw OrderError("load_state: an AverageScope is open; close it first");
  check_state(setup_, state, "load_state");
  const bool all_update = replicas_.all_update();
  if (setup_.peers() != nullptr && !all_update) {
    throw UnsupportedError(
        "load_state: with several processes every replica must update the parameters; this reducer leaves some out");
  }
  const std::optional<double> momentum = momentum_of(setup_.config.optimizer);
  const bool scales = static_cast<bool>(replicas_[0].scaler->state());
  const auto [scale, tracker] = state.loss_scale.value_or(scales ? loss_scale_state() : std::pair{1.0F, int32_t{0}});
  Counters counters{state.step,
                    state.updates,
                    state.skipped_in_row,
                    state.learning_rate,
                    state.momentum.value_or(momentum.value_or(0.0)),
                    int64_t{tracker},
                    scale};
  if (setup_.peers() != nullptr) {
    const std::string bytes = setup_.peers()->broadcast(
        "the training state", std::string(reinterpret_cast<const char*>(&counters), sizeof counters));
    if (bytes.size() != sizeof counters)
      throw CommError("load_state: rank 0 sent a state of another size; do all run the same version?");
    std::memcpy(&counters, bytes.data(), sizeof counters);
  }
  parameters_.set(state.flat(kParameters).values());
  BufferValues buffers{{}, state.counters};
  if (state.has_flat(kBuffers))
    buffers.values.assign(state.flat(kBuffers).values().begin(), state.flat(kBuffers).values().end());
  parameters_.set_buffers(buffers);
  set_optimizer_states(state, static_cast<int32_t>(counters.updates));
  if (scales)
    replicas_.for_each([&](Replica& r) {
      r.scaler->set_state(r.compute(), counters.loss_scale, static_cast<int32_t>(counters.growth_tracker));
    });
  TrainingProgress& progress = window_.progress();
  progress.steps = progress.first_step = counters.step;
  progress.skipped_in_row = static_cast<int>(counters.skipped_in_row);
  setup_.config.optimizer.set_learning_rate(counters.learning_rate);
  if (momentum) setup_.config.optimizer.set_momentum(counters.momentum);
}

void Checkpointer::set_optimizer_states(const TrainingState& state, int32_t updates) {
  const ConstView from_updates(&updates, {1}, DType::i32, DeviceId::host());
  replicas_.for_each([&](Replica& r) {
    if (!r.updates()) return;
    const PhaseScope phase(r.compute(), Phase::replicate);
    for (const FlatState& flat : flat_states(setup_.config.optimizer, r)) {
      if (is_replicated(flat.name)) continue;
      const std::span<const float> values = state.flat(flat.name).values();
      for (const ShardPiece& piece : flat.pieces)
        copy(r.compute(), ConstView(values.data() + piece.begin, {piece.size()}, DType::f32, DeviceId::host()),
             piece.of_states(flat.on_device));
    }
    copy(r.compute(), from_updates, r.optimizer.updates_done);
  });
  setup_.devices.synchronize();
  if (setup_.peers() == nullptr) return;
  const ProcessGroup::Waiting waiting(*setup_.peers(), "the optimizer's state of rank 0");
  const std::vector<FlatState> flats = flat_states(setup_.config.optimizer, updating_replica(replicas_, "load_state"));
  for (size_t i = 0; i < flats.size(); ++i) {
    const FlatState& sent = flats[i];
    if (is_replicated(sent.name)) continue;
    if (setup_.sharded()) {
      const auto set = [&](Replica& r, const ShardPiece& piece, std::span<const float> values) {
        const PhaseScope phase(r.compute(), Phase::replicate);
        copy(r.compute(), ConstView(values.data(), {piece.size()}, DType::f32, DeviceId::host()),
             piece.of_states(flat_states(setup_.config.optimizer, r)[i].on_device));
        setup_.devices.synchronize();
      };
      scatter_shards(setup_, replicas_, "the state " + sent.name, state.flat(sent.name).values(), set);
      continue;
    }
    replicas_.for_each_at_once([&](Replica& r) {
      const PhaseScope phase(r.communication(), Phase::replicate, "optimizer state");
      for (const FlatState& flat : flat_states(setup_.config.optimizer, r)) {
        if (flat.name == sent.name) r.reducer_context.communicator->broadcast(r.communication(), flat.on_device, 0);
      }
    });
  }
  setup_.devices.synchronize();
}

void Checkpointer::set_loss_scale_state(float scale, int32_t growth_tracker) {
  window_.drain();
  setup_.require_training("set_loss_scale_state");
  setup_.devices.synchronize();
  replicas_.for_each([&](Replica& r) { r.scaler->set_state(r.compute(), scale, growth_tracker); });
}

std::pair<float, int32_t> Checkpointer::loss_scale_state() {
  window_.drain();
  setup_.require_training("loss_scale_state");
  Replica& r = replicas_[0];
  if (!r.scaler->state()) {
    throw OrderError(
        "loss_scale_state: losses are not scaled; set Precision::loss_scaling to a fixed or dynamic scale");
  }
  const std::vector<float> values = read_flat(setup_.devices, r, r.scaler->state());
  return {values[LossScaleState::kScale], static_cast<int32_t>(values[LossScaleState::kGrowthTracker])};
}

}  // namespace vitrine
