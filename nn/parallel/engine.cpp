// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan_search.h"
#include "runtime/error.h"
#include "runtime/gpu_info.h"
#include "runtime/process_group/process_group.h"
#include "runtime/units.h"

namespace vitrine {
namespace {

constexpr int kStepsInFlight = 2;

}  // namespace

std::vector<int64_t> evaluation_sizes(const EngineConfig& config, int64_t samples, int world_size) {
  return plan_batch(config.scheme.split, samples, 1, world_size).sizes[0];
}

Engine::Engine(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload)
    : state_(std::make_unique<State>(model, devices, std::move(config), std::move(workload))) {
  State& s = *state_;
  if (s.devices.process_count() > 1) s.agree_with_processes();
  s.plans = plan_or_explain(s.model, s.devices, s.config, s.workload);
  s.full_batch = plan_batch(s.config.scheme.split, s.config.batch_size, s.config.accumulate, s.devices.world_size());
  s.reserve();
  s.host_records = HostBuffer(DataParallel::kStepSlots * kRecord * size_of(DType::f32), s.devices.host_memory());
  s.parts = std::make_unique<DataParallel>(s.model, s.devices, s.config, capacity_for(s.config, s.workload, s.devices));
  std::vector<float> start(static_cast<size_t>(layout().parameter_elements()), 0.0F);
  initialize(layout(), s.config.seed, start);
  s.parts->set_parameters(start);
  if (s.devices.process_count() > 1) verify_replicas();
}

Engine::~Engine() = default;

void Engine::State::issue_micro_batches(const HostBatch& batch, const ProcessPart& part) {
  int64_t row = 0;  // of this process's part of the batch
  for (size_t k = 0; k < part.sizes.size(); ++k) {
    const std::span<const int64_t> sizes = part.sizes[k];
    parts->scatter(batch, sizes, row, part.first[k]);
    row += std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    parts->forward(true);
    parts->loss();
    parts->backward(k + 1 == part.sizes.size());
  }
}

void Engine::State::issue(const HostBatch& batch, const ProcessPart& part, int slot) {
  parts->begin_step(steps);
  parts->measure_reduction(measures_reduction());
  issue_micro_batches(batch, part);
  parts->reduce();
  parts->unscale();
  if (config.precision.clip_norm > 0.0) parts->clip(config.precision.clip_norm);
  parts->update();
  parts->update_loss_scale();
  parts->broadcast();
  parts->read_step(record(slot).rows(0, DataParallel::kTail), record(slot).rows(DataParallel::kTail, kControlEnd));
  if (measures_reduction()) parts->read_reduction_error(record(slot).rows(kControlEnd, kRecord));
  parts->record_step_done(slot);
}

void Engine::State::give_up_step() {
  in_flight.clear();
  disturbed = true;
}

void Engine::State::throw_if_failed() {
  if (!parts->failed()) return;
  const std::exception_ptr cause = parts->recover();
  VITRINE_ASSERT(cause != nullptr, "what has failed has a cause");
  give_up_step();
  std::rethrow_exception(cause);
}

void Engine::State::finish_oldest() {
  const Issued issued = in_flight.front();
  parts->wait_step_done(issued.slot);
  throw_if_failed();
  in_flight.pop_front();
  if (issued.step == 0 && devices.process_count() > 1) devices.process_group()->set_warm();
  finished.push_back(step_result(issued));
  if (finished.back().diverged) stop_training(issued, finished.back());
  throw_if_diverged(finished.back());
}

const ProcessPart& Engine::State::training_part(int64_t samples) {
  const auto found = training_parts.find(samples);
  if (found != training_parts.end()) return found->second;
  const BatchPlan plan = plan_batch(config.scheme.split, samples, config.accumulate, devices.world_size());
  return training_parts.emplace(samples, part_of_process(plan, devices.first_rank(), devices.size())).first->second;
}

const std::vector<int64_t>& Engine::State::evaluation_part(int64_t samples) {
  const auto found = evaluation_parts.find(samples);
  if (found != evaluation_parts.end()) return found->second;
  const std::vector<int64_t> all = evaluation_sizes(config, samples, devices.world_size());
  const auto first = all.begin() + devices.first_rank();
  return evaluation_parts.emplace(samples, std::vector(first, first + devices.size())).first->second;
}

void Engine::train_step(const HostBatch& batch) {
  State& s = *state_;
  s.parts->require_training("train_step");
  const int64_t samples = s.global_samples(batch, s.workload.train_batches, "train_step");
  while (static_cast<int>(s.in_flight.size()) >= kStepsInFlight) s.finish_oldest();
  s.throw_if_failed();
  const int slot = static_cast<int>(s.steps % DataParallel::kStepSlots);
  const ProcessPart& part = s.training_part(samples);
  const int64_t rows = row_count(part.rows);
  s.check_batch(batch, samples, rows, "train_step");
  try {
    s.issue(batch, part, slot);
  } catch (...) {
    const std::exception_ptr cause = s.parts->recover(std::current_exception());
    s.give_up_step();
    std::rethrow_exception(cause);
  }
  s.in_flight.push_back({slot, batch, samples, s.steps});
  s.trained_sizes.insert(samples);
  ++s.steps;
}

std::vector<StepResult> Engine::take_step_results(bool wait) {
  State& s = *state_;
  while (wait && !s.in_flight.empty()) s.finish_oldest();
  return std::exchange(s.finished, {});
}

StepResult Engine::evaluate(const HostBatch& batch, std::vector<float>* logits) {
  State& s = *state_;
  const int64_t samples = s.global_samples(batch, s.workload.evaluate_batches, "evaluate");
  const std::vector<int64_t>& sizes = s.evaluation_part(samples);
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  s.check_batch(batch, samples, rows, "evaluate");
  while (!s.in_flight.empty()) s.finish_oldest();
  std::vector<float> totals(static_cast<size_t>(s.devices.size() * LossTotals::kCount), 0.0F);
  const size_t before = logits != nullptr ? logits->size() : 0;
  if (logits != nullptr) logits->resize(before + static_cast<size_t>(s.model.logits_shape(rows).numel()));
  try {
    s.parts->evaluate(batch, sizes);
    s.parts->read_evaluation(totals, logits != nullptr ? logits->data() + before : nullptr);
  } catch (...) {
    const std::exception_ptr cause = s.parts->recover(std::current_exception());
    s.give_up_step();
    std::rethrow_exception(cause);
  }
  s.evaluated_sizes.insert(samples);
  StepResult sum;
  for (int d = 0; d < s.devices.size(); ++d) {
    const StepResult part = totals_from(totals.data() + d * LossTotals::kCount);
    sum.loss_sum += part.loss_sum;
    sum.valid += part.valid;
    sum.correct += part.correct;
  }
  return sum;
}

void Engine::finish() {
  State& s = *state_;
  while (!s.in_flight.empty()) s.finish_oldest();
  s.devices.synchronize();
  const auto all_of = [](const std::vector<int64_t>& planned, const std::set<int64_t>& done) {
    return std::all_of(planned.begin(), planned.end(), [&](int64_t size) { return done.contains(size); });
  };
  const bool whole = !s.disturbed && all_of(s.workload.train_batches, s.trained_sizes) && all_of(s.workload.evaluate_batches, s.evaluated_sizes);
  for (int i = 0; i < s.devices.size(); ++i) {
    const PoolStatistics measured = s.devices[i].pool().statistics();
    const DevicePlan& planned = s.plans[static_cast<size_t>(i)];
    VITRINE_ASSERT(measured.peak_bytes <= planned.peak_bytes, "a pool never exceeds its plan");
    VITRINE_ASSERT(!whole || (measured.peak_bytes == planned.peak_bytes && measured.peak_by_category == planned.peak_by_category),
                   "the measured peak is the planned one");
  }
}

const FlatLayout& Engine::layout() const { return state_->parts->layout(); }
void Engine::set_parameters(std::span<const float> flat) {
  while (!state_->in_flight.empty()) state_->finish_oldest();
  state_->parts->set_parameters(flat);
}
std::vector<float> Engine::parameters(int device) {
  while (!state_->in_flight.empty()) state_->finish_oldest();
  return state_->parts->parameters(device);
}
std::vector<float> Engine::working_parameters(int device) {
  while (!state_->in_flight.empty()) state_->finish_oldest();
  return state_->parts->working_parameters(device);
}
std::vector<float> Engine::gradients(int device) {
  while (!state_->in_flight.empty()) state_->finish_oldest();
  return state_->parts->gradients(device);
}
const EngineConfig& Engine::config() const { return state_->config; }
const std::vector<DevicePlan>& Engine::device_plans() const { return state_->plans; }
const BatchPlan& Engine::batch_plan() const { return state_->full_batch; }
std::string Engine::communicator() const { return state_->parts->communicator(); }
void Engine::set_loss_scale_state(float scale, int32_t growth_tracker) {
  while (!state_->in_flight.empty()) state_->finish_oldest();
  state_->parts->set_loss_scale_state(scale, growth_tracker);
}
std::pair<float, int32_t> Engine::loss_scale_state() {
  while (!state_->in_flight.empty()) state_->finish_oldest();
  return state_->parts->loss_scale_state(0);
}
void Engine::vote_to_stop() { state_->parts->vote_to_stop(); }
int64_t Engine::steps_issued() const { return state_->steps; }
void Engine::set_learning_rate(double lr) {
  state_->config.optimizer.set_learning_rate(lr);
  state_->parts->set_learning_rate(lr);
}

}  // namespace vitrine
