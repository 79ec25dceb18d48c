// SPDX-License-Identifier: Apache-2.0
// What an engine does when a device is lost in the middle of a step. Under ddp every replica holds the whole state and
// changes it only after the reduction, by itself: a replica whose streams are idle has either finished a step or not
// begun its update. The replica that has finished most steps holds the state of a run without the loss. The engine is
// made again over the devices that are left, continues from that state, and repeats the steps after it.
//
// On GPUs an aborted collective looks as if it had succeeded. There the host waits for the reduction of all devices
// before it issues any update, and then issues the rest of the step on all that are not lost
// (StepWindow::await_reduction).
#include <algorithm>
#include <utility>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan/plan.h"
#include "runtime/copy.h"
#include "runtime/host_buffer.h"

namespace vitrine {
namespace {

Replica& most_advanced(ReplicaGroup& replicas, const std::vector<int>& lost) {
  Replica* most = nullptr;
  for (auto& r : replicas) {
    if (std::binary_search(lost.begin(), lost.end(), r->ordinal())) continue;
    if (most == nullptr || r->steps_finished > most->steps_finished) most = r.get();
  }
  return *most;
}

std::vector<HostBuffer> copy_lasting(Replica& from, HostMemory memory) {
  std::vector<HostBuffer> copies;
  for (const View& view : from.lasting()) {
    copies.emplace_back(view.bytes(), memory);
    copy(from.compute(), view, copies.back().view(view.shape, view.dtype));
  }
  from.compute().stream().synchronize();
  return copies;
}

void set_lasting(Replica& r, const std::vector<HostBuffer>& copies) {
  const PhaseScope phase(r.compute(), Phase::setup);
  const std::vector<View> views = r.lasting();
  for (size_t i = 0; i < views.size(); ++i) copy(r.compute(), copies[i].view(views[i].shape, views[i].dtype), views[i]);
}

}  // namespace

void Engine::survive_in(const std::function<void()>& work) {
  while (true) {
    try {
      issue_undone();
      return work();
    } catch (const Error& error) {
      const std::vector<int> lost = state_->replicas.lost();
      if (lost.empty() || (error.kind() != ErrorKind::device && error.kind() != ErrorKind::cuda)) throw;
      std::vector<DevicePlan> plans;
      try {
        if (static_cast<int>(lost.size()) < devices().size()) plans = plan_without(*state_->setup, lost);
      } catch (const OutOfMemory& why) {
        if (!state_->setup->on_gpus()) state_->replicas.equalize_buffers();
        state_->window.undone().clear();
        throw OutOfMemory(error.reason() + "\nThe other devices cannot go on: " + why.reason(), why.shortage());
      }
      if (plans.empty()) {
        state_->window.undone().clear();
        throw;
      }
      std::vector<std::string> names;
      for (const int device : lost) names.push_back(devices()[device].name());
      go_on_without(lost, std::move(plans));
      for (const std::string& name : names)
        state_->facts.losses.push_back({name, error.what(), state_->window.progress().steps});
    }
  }
}

void Engine::issue_undone() {
  std::deque<StepWindow::Issued>& undone = state_->window.undone();
  while (!undone.empty()) {
    OptimizerConfig& optimizer = state_->setup->config.optimizer;
    const OptimizerConfig now = std::exchange(optimizer, undone.front().optimizer);
    const auto reset = [&optimizer](const OptimizerConfig* to) { optimizer = *to; };
    const std::unique_ptr<const OptimizerConfig, decltype(reset)> guard(&now, reset);
    issue_next(undone.front().batch, undone.front().samples);
    undone.pop_front();
  }
}

void Engine::go_on_without(const std::vector<int>& lost, std::vector<DevicePlan> plans) {
  State& old = *state_;
  DeviceGroup& group = devices();
  Replica& from = most_advanced(old.replicas, lost);
  from.compute().stream().enter();  // the current GPU may be the lost one
  const std::vector<HostBuffer> lasting = copy_lasting(from, group.host_memory());
  StepWindow::Rest rest = old.window.take_rest(from);
  const bool averages_in_place = old.parameters.averages().in_place(), votes_to_stop = old.passes.votes_to_stop();
  std::vector<DeviceLoss> losses = std::move(old.facts.losses);
  const Model& model = old.setup->model;
  EngineConfig config = config_without(old.setup->config, lost);
  Workload workload = old.setup->workload;

  state_ = nullptr;  // returns its memory
  group.reopen_without(lost);
  auto setup = std::make_unique<EngineSetup>(model, group, std::move(config), std::move(workload));
  reserve(*setup, plans, false);
  state_ = std::make_unique<State>(std::move(setup), std::move(plans), Tuning());
  State& s = *state_;
  s.stager.load_resident_images();
  s.replicas.for_each([&](Replica& r) {
    set_lasting(r, lasting);
    r.steps_begun = r.steps_finished = rest.progress.steps;
  });
  group.synchronize();
  s.window.continue_from(std::move(rest));
  s.parameters.averages().continue_from(averages_in_place);
  if (votes_to_stop) s.passes.vote_to_stop();
  s.facts.losses = std::move(losses);
}

}  // namespace vitrine
