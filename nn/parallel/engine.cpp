// SPDX-License-Identifier: Apache-2.0
// Construction of an engine, its steps in flight, and its accessors.
#include "nn/parallel/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan/plan_search.h"
#include "nn/parallel/settings.h"
#include "nn/segments.h"
#include "runtime/copy.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

constexpr size_t kStepsInFlight = 2;
constexpr int64_t kPollsBeforeSleep = 200;
constexpr std::chrono::microseconds kPollInterval{20};
// Host memory through which images reach the devices that hold them.
constexpr int64_t kLoadBytes = int64_t{16} << 20;

std::vector<ParamSpec> parameters_of(const Model& model) {
  if (model.net == nullptr) throw ConfigError("engine: the model has no network");
  return model.net->parameters();
}

/// Samples of each device of all processes in an evaluation batch.
std::vector<int64_t> evaluation_sizes(const EngineConfig& config, int64_t samples, int world_size) {
  return plan_batch(config.scheme.split, samples, 1, world_size).sizes[0];
}

/// throws ConfigError.
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

/// Makes a GPU current on this thread for good, so that no operation has to.
void stay_on_gpu(Device& device) noexcept {
  try {
    device.compute().stream().enter();
  } catch (...) {  // NOLINT: a lost GPU, which the first operation reports
  }
}

/// The largest numbers of samples in the batches that are planned for.
struct Capacity {
  std::vector<int64_t> slice;  // of each device in one micro-batch
  int64_t micro_batch = 0;     // of all devices in one micro-batch
  int64_t evaluate_slice = 0;  // of any device in an evaluation batch
};

Capacity capacity_for(const EngineConfig& config, const Workload& workload, const DeviceGroup& devices) {
  const int first = devices.first_rank();
  Capacity capacity;
  capacity.slice.assign(static_cast<size_t>(devices.size()), 0);
  for (const int64_t samples : workload.train_batches) {
    const BatchPlan plan = plan_batch(config.scheme.split, samples, config.accumulate, devices.world_size());
    for (int d = 0; d < devices.size(); ++d) {
      int64_t& slice = capacity.slice[static_cast<size_t>(d)];
      slice = std::max(slice, plan.largest_slice(first + d));
    }
    for (int k = 0; k < plan.micro_batches(); ++k)
      capacity.micro_batch = std::max(capacity.micro_batch, plan.micro_batch_size(k));
  }
  for (const int64_t samples : workload.evaluate_batches) {
    const std::vector<int64_t> sizes = evaluation_sizes(config, samples, devices.world_size());
    for (int d = 0; d < devices.size(); ++d)
      capacity.evaluate_slice =
          std::max(capacity.evaluate_slice, sizes[static_cast<size_t>(first) + static_cast<size_t>(d)]);
  }
  return capacity;
}

}  // namespace

Engine::State::State(const Model& m, DeviceGroup& d, EngineConfig c, Workload w)
    : model(m),
      devices(d),
      config(std::move(c)),
      workload(std::move(w)),
      layout(parameters_of(m), kTailElements),
      buffer_layout(*m.net) {
  update_ranges = make_update_ranges(layout, config.parameter_groups, config.optimizer.weight_decay());
}

Engine::State::~State() {
  if (replicas.empty()) return;
  std::optional<ProcessGroup::Waiting> waiting;
  if (ProcessGroup* process_group = devices.process_group(); process_group != nullptr && devices.process_count() > 1) {
    // Other processes may still be in their part of these collectives: an abort would fail the whole process group.
    waiting.emplace(*process_group, "the last collectives");
  } else if (communicators) {
    (*communicators)[0]->abort("the engine ends");
  }
  for (int i = 0; i < devices.size(); ++i) {
    try {
      devices[i].synchronize();
    } catch (...) {  // finish() would have reported it
    }
  }
  graphs.reset();  // NCCL waits for the end of graphs that contain its collectives
  close_communicators();
  try {
    devices.synchronize();
  } catch (...) {
  }
  for (int i = 0; i < devices.size(); ++i) devices[i].compute().release_workspace();
}

ImageForm Engine::input_form(const Model& model, const DeviceGroup& devices, const EngineConfig& config) {
  if (config.image_dtype != DType::u8 || !model.takes_images()) return {};
  return model.net->input_form(model.input_shape(1), {devices.target().backend, config.precision.compute,
                                                      config.input_packing, devices.options().tf32});
}

ImageForm Engine::input_form() const { return state_->input_form; }

void Engine::State::make_replicas() {
  const Scheme& scheme = config.scheme;
  if (scheme.output_device < 0 || scheme.output_device >= devices.size()) {
    throw ConfigError(fmt::format("output device: {} is not one of the {} devices, which are numbered from 0",
                                  scheme.output_device, devices.size()));
  }
  recomputed = recomputed_segments(model, config);
  input_form = Engine::input_form(model, devices, config);
  gradient_over_output = config.loss_gradient_in_place && model.net->output_is_free(model.input_shape(1), Pass{});
  readouts = HostBuffer(kStepSlots * StepReadout::kCount * size_of(DType::f32), devices.host_memory());
  const Capacity capacity = capacity_for(config, workload, devices);
  for (int i = 0; i < devices.size(); ++i) {
    const bool holds_all = scheme.staging == Staging::device0 && i == 0;
    int64_t images = holds_all ? capacity.micro_batch : capacity.slice[static_cast<size_t>(i)];
    int64_t labels = images;
    if (scheme.loss_at == LossAt::gathered) labels = i == scheme.output_device ? capacity.micro_batch : 0;
    images = std::max(images, capacity.evaluate_slice);
    labels = std::max(labels, capacity.evaluate_slice);
    const bool scatters = scheme.staging == Staging::device0 && i != 0;  // takes its images from device 0
    replicas.push_back(std::make_unique<Replica>(devices[i], model, config, layout, buffer_layout,
                                                 scatters ? 0 : config.resident_images.count, images, labels,
                                                 devices.first_rank() + i, devices.world_size()));
  }
  if (devices.size() > 1 && on_gpus())
    threads = std::make_unique<ReplicaThreads>(devices.size(), [this](int i) { stay_on_gpu(devices[i]); });
  open_communicators();
  why_no_graphs = vitrine::why_no_graphs(model, devices, config, replica(0).reduction.communicator);
  if (on_gpus() && !config.forward_only && why_no_graphs.empty()) {
    ProcessGroup* const process_group = devices.process_count() > 1 ? devices.process_group() : nullptr;
    graphs = std::make_unique<StepGraphs>(replica(0), devices.host_memory(), config.accumulate, process_group);
  }
}

void Engine::State::load_resident_images() {
  const ResidentImages& resident = config.resident_images;
  if (resident.count == 0) return;
  const int64_t image_bytes = staged_shape(model, config, 1).numel();
  const int64_t most = std::clamp<int64_t>(kLoadBytes / image_bytes, 1, resident.count);
  const HostBuffer part(most * image_bytes, devices.host_memory());
  for (int64_t first = 0; first < resident.count; first += most) {
    const int64_t count = std::min(most, resident.count - first);
    const View images = part.view(staged_shape(model, config, count), DType::u8);
    resident.read(first, images);
    for_each([&](Replica& r) {
      if (!r.resident_images) return;
      const PhaseScope setup(r.copy(), Phase::setup);
      vitrine::copy(r.copy(), images, r.resident_images.view().rows(first, first + count));
    });
    for_each([](Replica& r) { r.copy().stream().synchronize(); });  // before the buffer is filled again
  }
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) { state_->make_replicas(); }

Engine::Engine(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload)
    : state_(std::make_unique<State>(model, devices, std::move(config), std::move(workload))) {
  State& s = *state_;
  if (s.devices.process_count() > 1) s.agree_with_processes();
  s.plans = plan_or_explain(s.model, s.devices, s.config, s.workload);
  s.workspace_planned = !s.config.workspace_bytes;
  s.config.workspace_bytes = s.plans.front().workspace.bytes;
  s.full_batch = plan_batch(s.config.scheme.split, s.config.batch_size, s.config.accumulate, s.devices.world_size());
  s.reserve();
  s.tune_plans();
  s.make_replicas();
  s.load_resident_images();
  std::vector<float> start(static_cast<size_t>(s.layout.parameter_elements()), 0.0F);
  initialize(s.layout, s.config.seed, start);
  s.set_parameters(start);
  s.set_buffers(s.buffer_layout.initial());
  if (s.devices.process_count() > 1) verify_replicas();
}

Engine::~Engine() = default;

const ProcessPart& Engine::State::training_part(int64_t samples) {
  const auto found = training_parts.find(samples);
  if (found != training_parts.end()) return found->second;
  const BatchPlan plan = plan_batch(config.scheme.split, samples, config.accumulate, devices.world_size());
  return training_parts.emplace(samples, part_of_process(plan, devices.first_rank(), devices.size())).first->second;
}

const MicroBatch& Engine::State::evaluation_part(int64_t samples) {
  const auto found = evaluation_parts.find(samples);
  if (found != evaluation_parts.end()) return found->second;
  const std::vector<int64_t> all = evaluation_sizes(config, samples, devices.world_size());
  const auto first = all.begin() + devices.first_rank();
  return evaluation_parts.emplace(samples, MicroBatch{{first, first + devices.size()}}).first->second;
}

void Engine::State::require_training(const char* operation) const {
  if (!config.forward_only) return;
  throw ConfigError(fmt::format(
      "{}: this engine only evaluates (EngineConfig::forward_only), expected one that trains; construct another",
      operation));
}

int64_t Engine::State::global_samples(const HostBatch& batch, const std::vector<int64_t>& planned,
                                      const char* operation) const {
  const int64_t samples = batch.global_samples > 0 ? batch.global_samples : batch.labels.shape[0];
  if (std::find(planned.begin(), planned.end(), samples) == planned.end()) {
    throw ConfigError(fmt::format("{}: a batch of {} samples was not planned for; add it to the engine's workload",
                                  operation, samples));
  }
  return samples;
}

void Engine::State::check_batch(const HostBatch& batch, int64_t samples, int64_t rows, const char* operation,
                                bool from_dataset) const {
  const Shape& labels = batch.labels.shape;
  if (labels[0] != rows) {
    throw ConfigError(fmt::format("{}: expected {} samples, this process's part of a batch of {}, got {}", operation,
                                  rows, samples, labels[0]));
  }
  if (labels != model.label_shape(rows)) {
    throw ShapeError(fmt::format("{}: labels have shape {}, expected {} for {} samples with {} targets each", operation,
                                 labels.str(), model.label_shape(rows).str(), rows, model.targets_per_sample));
  }
  if (from_dataset) return;
  if (batch.images.shape == staged_shape(model, config, rows) && batch.images.dtype == config.image_dtype) return;
  throw ShapeError(fmt::format("{}: inputs have shape {} and dtype {}, expected {} and {}", operation,
                               batch.images.shape.str(), dtype_name(batch.images.dtype),
                               staged_shape(model, config, rows).str(), dtype_name(config.image_dtype)));
}

void Engine::State::check_sample_indices(const HostBatch& batch, int64_t rows) const {
  const bool from_dataset = gathers(batch);
  if (!config.augments() && !from_dataset) return;
  if (rows > 0 && !batch.samples) {
    const Reason what = from_dataset ? Reason({"on the devices (", settings::kResidentImages, ")"})
                                     : Reason("augmented (EngineConfig::augmentation)");
    throw ConfigError(Reason("train_step: images are ") + what +
                      ", but the batch has no sample indices; set HostBatch::samples (LoaderConfig::sample_indices)");
  }
  if (rows > 0 && batch.samples.shape != Shape{rows}) {
    throw ShapeError(
        fmt::format("train_step: sample indices have shape {}, expected ({})", batch.samples.shape.str(), rows));
  }
  if (rows > 0 && batch.samples.dtype != DType::i32) {
    throw DtypeError(fmt::format("train_step: sample indices are {}, expected i32", dtype_name(batch.samples.dtype)));
  }
  for (int64_t row = 0; from_dataset && row < rows; ++row) {
    const int64_t sample = batch.samples.as<int32_t>()[row], count = config.resident_images.count;
    if (sample >= 0 && sample < count) continue;
    throw ConfigError({fmt::format("train_step: sample index {} in row {} is not one of the {} images on the devices (",
                                   sample, row, count),
                       settings::kResidentImages, ")"});
  }
}

void Engine::issue(const HostBatch& batch, int64_t samples, int slot) {
  State& s = *state_;
  const ProcessPart& part = s.training_part(samples);
  const auto end_step = [&s](const ProcessPart*) { s.current_part = nullptr; };
  s.begin_step(s.steps, samples);
  s.current_part = &part;
  const std::unique_ptr<const ProcessPart, decltype(end_step)> guard(&part, end_step);
  (s.config.step ? s.config.step : default_step)(*this, batch);
  s.share_buffers();
  s.read_step(slot);
}

Engine::State& Engine::in_step(const char* operation) const {
  if (state_->current_part != nullptr) return *state_;
  throw OrderError(fmt::format(
      "{}: no training step has begun; call it from EngineConfig::step, which train_step() runs", operation));
}

void Engine::train_step(const HostBatch& batch) {
  State& s = *state_;
  s.require_training("train_step");
  if (s.averages_in_place)
    throw OrderError("train_step: an AverageScope is open, so the parameters are averages; close it first");
  const int64_t samples = s.global_samples(batch, s.workload.train_batches, "train_step");
  while (s.in_flight.size() >= kStepsInFlight) s.finish_oldest();
  s.throw_if_failed();
  const int slot = static_cast<int>(s.steps % kStepSlots);
  const ProcessPart& part = s.training_part(samples);
  s.check_batch(batch, samples, row_count(part.rows), "train_step", s.gathers(batch));
  s.check_sample_indices(batch, row_count(part.rows));
  s.issue_or_recover([&] { issue(batch, samples, slot); });
  s.in_flight.push_back({slot, batch, samples, s.steps});
  s.trained_sizes.insert(samples);
  ++s.steps;
}

void Engine::State::issue_or_recover(const std::function<void()>& issue) {
  try {
    issue();
  } catch (...) {
    std::rethrow_exception(recover(std::current_exception()));
  }
}

Engine::State& Engine::State::drain() {
  while (!in_flight.empty()) finish_oldest();
  return *this;
}

void Engine::State::finish_oldest() {
  const Issued issued = in_flight.front();
  wait_step_done(issued.slot);
  throw_if_failed();
  in_flight.pop_front();
  if (issued.step == first_step && devices.process_count() > 1) devices.process_group()->set_warm();
  finished.push_back(step_result(issued));
  for (int64_t& counter : counters) counter += static_cast<int64_t>(training_part(issued.samples).micro_batches.size());
  if (finished.back().diverged) stop_training(issued, finished.back());
  throw_if_diverged(finished.back());
}

void Engine::State::wait_step_done(int slot) {
  const bool polls = on_gpus() && communicators != nullptr;
  std::optional<ProcessGroup::Waiting> waiting;
  for (auto& r : replicas) {
    Event& done = *r->step_done[static_cast<size_t>(slot)];
    // A stream would wait forever for a broken GPU or communicator, so the host polls.
    for (int64_t round = 0; polls && !done.reached(); ++round) {
      if (round < kPollsBeforeSleep) continue;
      if (!waiting && devices.process_count() > 1)
        waiting.emplace(*devices.process_group(), fmt::format("step {} on {}", step, r->device.name()));
      if (is_stuck()) return;
      std::this_thread::sleep_for(kPollInterval);
    }
    done.synchronize();
  }
}

std::vector<StepResult> Engine::take_step_results(bool wait) {
  if (wait) state_->drain();
  return std::exchange(state_->finished, {});
}

StepResult Engine::evaluate(const HostBatch& batch, std::vector<float>* logits) {
  State& s = *state_;
  const int64_t samples = s.global_samples(batch, s.workload.evaluate_batches, "evaluate");
  const MicroBatch& part = s.evaluation_part(samples);
  const int64_t rows = part.samples();
  s.check_batch(batch, samples, rows, "evaluate", false);
  s.drain();
  const size_t before = logits != nullptr ? logits->size() : 0;
  if (logits != nullptr) logits->resize(before + static_cast<size_t>(s.model.logits_shape(rows).numel()));
  StepResult result;
  s.issue_or_recover([&] {
    s.issue_evaluation(batch, part, samples);
    result = s.read_evaluation(logits != nullptr ? logits->data() + before : nullptr);
  });
  s.evaluated_sizes.insert(samples);
  return result;
}

void Engine::finish() {
  State& s = state_->drain();
  s.devices.synchronize();
  const auto all_of = [](const std::vector<int64_t>& planned, const std::set<int64_t>& done) {
    return std::all_of(planned.begin(), planned.end(), [&](int64_t size) { return done.contains(size); });
  };
  const bool whole = !s.disturbed && all_of(s.workload.train_batches, s.trained_sizes) &&
                     all_of(s.workload.evaluate_batches, s.evaluated_sizes);
  for (int i = 0; i < s.devices.size(); ++i) {
    const PoolStatistics measured = s.devices[i].pool().statistics();
    const DevicePlan& planned = s.plans[static_cast<size_t>(i)];
    VITRINE_ASSERT(measured.peak_bytes <= planned.peak_bytes, "a pool never exceeds its plan");
    VITRINE_ASSERT(
        !whole || (measured.peak_bytes == planned.peak_bytes && measured.peak_by_category == planned.peak_by_category),
        "the measured peak is the planned one");
  }
}

const Model& Engine::model() const { return state_->model; }
DeviceGroup& Engine::devices() const { return state_->devices; }
const EngineConfig& Engine::config() const { return state_->config; }
const FlatLayout& Engine::layout() const { return state_->layout; }
const BufferLayout& Engine::buffer_layout() const { return state_->buffer_layout; }
const std::vector<DevicePlan>& Engine::device_plans() const { return state_->plans; }
const BatchPlan& Engine::batch_plan() const { return state_->full_batch; }
std::string Engine::communicator() const {
  return state_->communicators ? (*state_->communicators)[0]->description() : std::string();
}
int64_t Engine::steps_issued() const { return state_->steps; }
void Engine::set_learning_rate(double lr) { state_->config.optimizer.set_learning_rate(lr); }
void Engine::set_momentum(double momentum) { state_->config.optimizer.set_momentum(momentum); }
void Engine::vote_to_stop() { state_->votes_to_stop = true; }

}  // namespace vitrine
