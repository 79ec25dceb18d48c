// SPDX-License-Identifier: Apache-2.0
// The steps of an engine, and the parts of a step up to the gradient of the outputs.
#include "nn/parallel/engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/settings.h"
#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine {

void PeakCheck::check(const EngineSetup& setup, const std::vector<DevicePlan>& plans) const {
  const auto all_of = [](const std::vector<int64_t>& planned, const std::set<int64_t>& done) {
    return std::all_of(planned.begin(), planned.end(), [&](int64_t size) { return done.contains(size); });
  };
  const bool whole = !disturbed_ && all_of(setup.workload.train_batches, trained_) &&
                     all_of(setup.workload.evaluate_batches, evaluated_);
  for (int i = 0; i < setup.devices.size(); ++i) {
    const PoolStatistics measured = setup.devices[i].pool().statistics();
    const DevicePlan& planned = plans[static_cast<size_t>(i)];
    VITRINE_ASSERT(measured.peak_bytes <= planned.peak_bytes, "a pool never exceeds its plan");
    VITRINE_ASSERT(
        !whole || (measured.peak_bytes == planned.peak_bytes && measured.peak_by_category == planned.peak_by_category),
        "the measured peak is the planned one");
  }
}

Engine::State::State(std::unique_ptr<EngineSetup> engine_setup, EngineFacts known)
    : setup(std::move(engine_setup)),
      facts(std::move(known)),
      batches(*setup),
      replicas(*setup),
      stager(*setup, batches, replicas),
      outputs(*setup, replicas),
      passes(*setup, replicas, stager, outputs),
      window(*setup, replicas, batches,
             [this](const StepWindow::Issued& step) {
               return passes.find_first_non_finite(step.step, step.samples, step.batch, batches.training(step.samples));
             }),
      parameters(*setup, replicas, window),
      checkpointer(*setup, replicas, window, parameters) {
  const EngineConfig& config = setup->config;
  facts.batch = plan_batch(config.scheme.split, config.batch_size, config.accumulate, setup->devices.world_size());
  facts.input_form = stager.input_form();
  facts.communicator = replicas.communicator();
  if (setup->on_gpus() && !config.forward_only) {
    const std::string why_not = why_no_graphs(*setup, replicas[0].reducer_context.communicator);
    facts.cuda_graphs = why_not.empty() ? "after two steps of a shape" : "off: " + why_not;
    if (why_not.empty()) {
      graphs = std::make_unique<StepGraphs>(*setup, replicas, stager, outputs, facts.cuda_graphs);
      if (!config.step) window.read_in_work();
    }
  }
  replicas.on_recovery([this] {
    peaks.on_disturbed();
    if (graphs) graphs->forget();
  });
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}

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
  const auto forget_part = [this](const ProcessPart*) {
    issued_part = nullptr;
    replicas.end_work();
  };
  const int64_t step = window.progress().steps;
  replicas.begin_work(samples);
  passes.begin_step(step, samples);
  if (graphs) {
    graphs->begin_step(step, passes.votes_to_stop());
  } else {
    passes.begin_totals();
  }
  staged.reset();
  issued_part = &batches.training(samples);
  const std::unique_ptr<const ProcessPart, decltype(forget_part)> guard(issued_part, forget_part);
  if (setup->config.step) {
    setup->config.step(engine, batch);
  } else {
    default_step(engine, batch);
  }
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
    s.replicas.begin_work(-samples);
    s.passes.evaluate(batch, part, samples);
    s.replicas.end_work();
    result = s.passes.read_evaluation(logits != nullptr ? logits->data() + before : nullptr);
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

std::string Engine::plan_table() const {
  constexpr int kShown = static_cast<int>(Category::fragmentation);  // those before it are allocated
  std::string text = fmt::format("{:<10}{:>12}", "planned", "peak");
  for (int c = 0; c < kShown; ++c) text += fmt::format("{:>15}", category_name(static_cast<Category>(c)));
  for (int d = 0; d < devices().size(); ++d) {
    const DevicePlan& plan = facts().plans[static_cast<size_t>(d)];
    text += fmt::format("\n{:<10}{:>12}", devices()[d].name(), format_bytes(plan.peak_bytes));
    for (int c = 0; c < kShown; ++c)
      text += fmt::format("{:>15}", format_bytes(plan.peak_by_category[static_cast<size_t>(c)]));
  }
  return text + "\n";
}
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
  const Scheme& scheme = s.setup->config.scheme;
  s.staged = s.graphs ? s.graphs->stage(batch, micro_batch)
                      : s.stager.stage(batch, micro_batch, scheme.staging, scheme.loss_at);
  s.work_begun = false;
}

void Engine::replay_or_issue(const std::function<void()>& work) {
  State& s = in_step("replay_or_issue");
  if (!s.staged || std::exchange(s.work_begun, true)) {
    throw OrderError(
        "replay_or_issue: called before stage(), or twice for one micro-batch; call it once after each stage()");
  }
  if (s.graphs == nullptr) return work();
  const bool last = s.staged->position + 1 == std::ssize(micro_batches());
  if (!last || !s.window.reads_in_work()) return s.graphs->run(*s.staged, last, work);
  s.graphs->run(*s.staged, last, [&] {
    work();
    s.end_step(static_cast<int>(s.passes.step() % kStepSlots));
  });
}

void Engine::forward() {
  State& s = in_step("forward");
  if (!s.staged) throw OrderError("forward: no micro-batch was staged in this step; call stage() first");
  if (s.graphs) s.replicas.for_each([&](Replica&) { s.graphs->read_inputs(*s.staged); });
  s.passes.forward(&*s.staged);
}

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
