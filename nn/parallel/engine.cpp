// SPDX-License-Identifier: Apache-2.0
// Construction of an engine, its steps, and the parts of a step up to the gradient of the outputs.
#include "nn/parallel/engine.h"

#include <utility>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan/plan.h"
#include "nn/parallel/plan/plan_fields.h"
#include "nn/parallel/plan/remedies.h"
#include "nn/parallel/settings.h"
#include "runtime/host_buffer.h"
#include "runtime/philox.h"

namespace vitrine {

Engine::State::State(std::unique_ptr<EngineSetup> engine_setup, std::vector<DevicePlan> plans, Tuning tuning)
    : setup(std::move(engine_setup)),
      batches(*setup),
      replicas(*setup),
      stager(*setup, batches, replicas),
      outputs(*setup, replicas),
      passes(*setup, replicas, stager, outputs),
      evaluation(*setup, replicas, stager, outputs, passes),
      window(*setup, replicas, batches,
             [this](const StepWindow::Issued& step) {
               return passes.find_first_non_finite(step.step, step.samples, step.batch, batches.training(step.samples));
             }),
      parameters(*setup, replicas, window),
      checkpointer(*setup, replicas, window, parameters) {
  const EngineConfig& config = setup->config;
  facts.plans = std::move(plans);
  facts.batch = plan_batch(config.scheme.split, config.batch_size, config.accumulate, setup->devices.world_size());
  facts.input_form = stager.input_form();
  facts.communicator = replicas.communicator();
  facts.tuned_plans = std::move(tuning.plans);
  facts.autotune = std::move(tuning.report);
  if (setup->on_gpus() && !config.forward_only) {
    const std::string why_not = why_no_graphs(*setup, replicas[0].reduction.communicator);
    facts.cuda_graphs = why_not.empty() ? "after two steps of a shape" : "off: " + why_not;
    if (why_not.empty()) {
      graphs = std::make_unique<StepGraphs>(*setup, replicas[0]);
      stager.stage_in_work();
      if (!config.step) window.read_in_work();
    }
  }
  replicas.on_recovery([this] {
    peaks.on_disturbed();
    if (graphs) graphs->forget();
  });
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}

Engine::Engine(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload) {
  auto setup = std::make_unique<EngineSetup>(model, devices, std::move(config), std::move(workload));
  if (setup->peers() != nullptr) agree_with_processes(*setup);
  std::vector<DevicePlan> plans = plan_or_explain(model, devices, setup->config, setup->workload);
  const bool workspace_planned = !setup->config.workspace_bytes;
  setup->config.workspace_bytes = plans.front().workspace.bytes;
  reserve(*setup, plans, workspace_planned);
  Tuning tuning = tune_plans(*setup, plans);
  state_ = std::make_unique<State>(std::move(setup), std::move(plans), std::move(tuning));
  State& s = *state_;
  s.stager.load_resident_images();
  const FlatLayout& layout = s.setup->layout;
  s.parameters.set_in_parts([&](const Parameters::TakePart& take) {
    constexpr int64_t kElements = int64_t{1} << 18;  // 1 MiB of host memory
    const HostBuffer part(kElements * static_cast<int64_t>(sizeof(float)), s.setup->devices.host_memory());
    float* const values = part.view({kElements}, DType::f32).as<float>();
    initialize_in_parts(layout, s.setup->config.seed, {values, static_cast<size_t>(kElements)}, take);
  });
  s.parameters.set_buffers(s.setup->buffer_layout.initial());
  if (s.setup->peers() != nullptr) s.parameters.verify();
}

Engine::~Engine() = default;

void Engine::train_step(const HostBatch& batch) {
  State& s = *state_;
  s.setup->require_training("train_step");
  if (s.parameters.averages().in_place())
    throw OrderError("train_step: an AverageScope is open, so the parameters are averages; close it first");
  const int64_t samples = s.batches.check_training(batch);
  const int slot = s.window.free_slot();
  s.replicas.issue_or_recover([&] { s.issue(*this, batch, samples, slot); });
  s.window.add(slot, batch, samples);
  s.peaks.on_trained(samples);
}

void Engine::State::issue(Engine& engine, const HostBatch& batch, int64_t samples, int slot) {
  const auto forget_part = [this](const ProcessPart*) { issued_part = nullptr; };
  passes.begin_step(window.progress().steps, samples);
  issued_part = &batches.training(samples);
  const std::unique_ptr<const ProcessPart, decltype(forget_part)> guard(issued_part, forget_part);
  (setup->config.step ? setup->config.step : default_step)(engine, batch);
  if (!window.reads_in_work()) end_step(slot);
}

void Engine::State::end_step(int slot) {
  passes.share_buffers();
  window.read_step(slot);
}

std::vector<StepResult> Engine::take_step_results(bool wait) {
  if (wait) state_->window.drain();
  return state_->window.take();
}

StepResult Engine::evaluate(const HostBatch& batch, std::vector<float>* logits) {
  State& s = *state_;
  const int64_t samples = s.batches.check_evaluation(batch);
  const MicroBatch& part = s.batches.evaluation(samples);
  s.window.drain();
  const size_t before = logits != nullptr ? logits->size() : 0;
  if (logits != nullptr)
    logits->resize(before + static_cast<size_t>(s.setup->model.logits_shape(part.samples()).numel()));
  StepResult result;
  s.replicas.issue_or_recover([&] {
    s.evaluation.issue(batch, part, samples);
    result = s.evaluation.read(logits != nullptr ? logits->data() + before : nullptr);
  });
  s.peaks.on_evaluated(samples);
  return result;
}

void Engine::finish() {
  state_->window.drain();
  state_->setup->devices.synchronize();
  state_->peaks.check(*state_->setup, state_->facts.plans);
}

DeviceGroup& Engine::devices() const { return state_->setup->devices; }
const EngineConfig& Engine::config() const { return state_->setup->config; }
const EngineFacts& Engine::facts() const { return state_->facts; }
Parameters& Engine::parameters() { return state_->parameters; }
Checkpointer& Engine::checkpointer() { return state_->checkpointer; }
GraphCounts Engine::graph_counts() const { return state_->graphs ? state_->graphs->counts() : GraphCounts(); }
int64_t Engine::steps_issued() const { return state_->window.progress().steps; }
void Engine::set_learning_rate(double lr) { state_->setup->config.optimizer.set_learning_rate(lr); }
void Engine::set_momentum(double momentum) { state_->setup->config.optimizer.set_momentum(momentum); }
void Engine::vote_to_stop() { state_->passes.vote_to_stop(); }

Engine::State& Engine::in_step(const char* operation) const {
  if (state_->issued_part != nullptr) return *state_;
  throw OrderError(fmt::format(
      "{}: no training step has begun; call it from EngineConfig::step, which train_step() runs", operation));
}

const std::vector<MicroBatch>& Engine::micro_batches() const {
  return in_step("micro_batches").issued_part->micro_batches;
}

void Engine::stage(const HostBatch& batch, const MicroBatch& micro_batch) {
  State& s = in_step("stage");
  s.stager.stage(batch, micro_batch, s.setup->config.scheme.staging, s.setup->config.scheme.loss_at);
}

void Engine::replay_or_issue(const std::function<void()>& work) {
  State& s = in_step("replay_or_issue");
  const Stager::Place place = s.stager.take_place();
  if (s.graphs == nullptr) return work();
  Replica& r = s.replicas[0];
  const OptimizerConfig& optimizer = s.setup->config.optimizer;
  const bool sgd = optimizer.kind == OptimizerConfig::Kind::sgd;
  const int64_t step = s.passes.step();
  if (place.position < s.stager.step_inputs()->micro_batches()) {
    s.stager.step_inputs()->set_values(
        place.position,
        {optimizer.learning_rate(), sgd ? optimizer.sgd.momentum : optimizer.adam_kernel().beta1, step,
         r.batch.first_sample, random_stream(RandomPurpose::augmentation, static_cast<uint64_t>(s.stager.epoch()))});
  }
  const auto issue = [&, last = s.window.reads_in_work() && micro_batches()[place.position].last] {
    work();
    if (last) s.end_step(static_cast<int>(step % kStepSlots));
  };
  // A graph of a step's first micro-batch gathers in every step, and then nothing is due in the others.
  const auto set_due = [&r](bool due) {
    if (r.gathered) r.gathered->set_due(due);
  };
  set_due(place.position == 0);
  const auto start_again = [&, targets = r.batch.targets, had_gradients = r.model.has_gradients] {
    set_due(place.position == 0);
    s.stager.start_again();
    s.outputs.forget_scattered();
    r.forget_micro_batch();
    r.batch.targets = targets;
    r.model.has_gradients = had_gradients;
    r.scaler->reset();
    r.reducer->begin_step(step);
    r.device.pool().restart_section();
    s.facts.cuda_graphs = fmt::format("off since step {}: {}", step + 1, s.graphs->failure());
  };
  if (s.graphs->run(place.section, place.slot, place.position, step, {issue, start_again})) return;
  // What issuing the work would have left on the host.
  r.model.has_gradients = true;
  set_due(micro_batches()[static_cast<size_t>(place.position)].last);
  r.forget_micro_batch();
}

void Engine::forward() { in_step("forward").passes.forward(true); }
void Engine::loss() { in_step("loss").outputs.compute_loss(); }
OutputExchange& Engine::outputs() { return in_step("outputs").outputs; }
ConstView Engine::step_control(int device) const { return in_step("step_control").replicas[device].scaler->control(); }
View Engine::gradients(int device) {
  if (config().update_in_backward)
    throw ConfigError({"gradients: they are freed in backward; leave out ", settings::kUpdateInBackward});
  return in_step("gradients").replicas[device].parameter_gradients();
}

Engine::AverageScope::AverageScope(Engine& engine) : engine_(engine) {
  if (engine.state_->issued_part != nullptr)
    throw OrderError("AverageScope: a training step is being issued; open it between steps");
  engine.parameters().averages().enter();
}
Engine::AverageScope::~AverageScope() { engine_.state_->parameters.averages().leave(); }

Engine::NoReductionScope::NoReductionScope(Engine& engine)
    : engine_(engine), previous_(engine.in_step("NoReductionScope").reduction_on) {
  if (engine.config().scheme.shards(Sharding::gradients))
    throw ConfigError(
        "NoReductionScope: a device holds only its shard of the gradients; shard the optimizer's states only");
  if (engine.config().update_in_backward)
    throw ConfigError({"NoReductionScope: a device updates parameters with reduced gradients only; leave out ",
                       settings::kUpdateInBackward});
  engine_.state_->reduction_on = false;
}
Engine::NoReductionScope::~NoReductionScope() { engine_.state_->reduction_on = previous_; }

}  // namespace vitrine
