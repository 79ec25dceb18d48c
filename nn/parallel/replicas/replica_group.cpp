// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/replicas/replica_group.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "runtime/comm/capabilities.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

/// Makes a GPU current on this thread for good, so that no operation has to.
void stay_on_gpu(Device& device) noexcept {
  try {
    device.compute().stream().enter();
  } catch (...) {  // NOLINT: a lost GPU, which the first operation reports
  }
}

}  // namespace

ReplicaGroup::ReplicaGroup(const EngineSetup& setup) : ReplicaGroup(setup, Empty()) {
  DeviceGroup& devices = setup.devices;
  for (int i = 0; i < devices.size(); ++i) replicas_.push_back(std::make_unique<Replica>(devices[i], setup));
  if (size() > 1 && setup.on_gpus())
    threads_ = std::make_unique<ReplicaThreads>(size(), [&](int i) { stay_on_gpu(devices[i]); });
  open_communicators();
}

ReplicaGroup::~ReplicaGroup() {
  wait_for_end();
  close_communicators();
  for (int i = 0; i < setup_.devices.size(); ++i) setup_.devices[i].compute().release_workspace();
}

void ReplicaGroup::wait_for_end() noexcept {
  try {
    std::optional<ProcessGroup::Waiting> waiting;
    if (setup_.peers() != nullptr) {
      // Other processes may still be in their part of these collectives: an abort would fail the whole process group.
      waiting.emplace(*setup_.peers(), "the last collectives");
    } else if (communicators_) {
      (*communicators_)[0]->abort("the engine ends");
    }
    setup_.devices.synchronize();
  } catch (...) {  // NOLINT: finish() would have reported it
  }
}

int64_t ReplicaGroup::samples_before(int ordinal) const {
  const auto add = [](int64_t sum, const std::unique_ptr<Replica>& r) { return sum + r->batch.samples; };
  return std::accumulate(replicas_.begin(), replicas_.begin() + ordinal, int64_t{0}, add);
}

bool ReplicaGroup::all_update() const {
  return std::all_of(replicas_.begin(), replicas_.end(), [](const auto& r) { return r->updates(); });
}

void ReplicaGroup::finish_gathering(int64_t step) {
  for_each_at_once([&](Replica& r) {
    if (!r.gathered) return;
    r.communication().set_step(step);
    const PhaseScope phase(r.compute(), Phase::broadcast);
    r.gathered->finish();
  });
}

void ReplicaGroup::for_each_updating(const std::function<void(Replica&)>& work) {
  for_each_at_once([&](Replica& r) {
    if (r.updates()) work(r);
  });
}

void ReplicaGroup::open_communicators() {
  // Evaluation exchanges nothing between devices; processes get their parameters from rank 0.
  DeviceGroup& devices = setup_.devices;
  if (devices.world_size() < 2 || (setup_.config.forward_only && devices.process_count() == 1)) return;
  communicators_ = std::make_shared<Communicators>(make_communicators(devices));
  for (auto& r : replicas_) {
    r->reducer_context.communicator = (*communicators_)[static_cast<size_t>(r->ordinal())].get();
    const auto abort_peers = [group = communicators_, name = r->device.name()](const Reason& reason) {
      (*group)[0]->abort(Reason(name + " failed: ") + reason);
    };
    for (ExecContext* ctx : r->contexts()) ctx->stream().set_error_handler(abort_peers);
  }
  keep_in_step(true);
}

void ReplicaGroup::keep_in_step(bool in_step) {
  if (threads_ == nullptr || !communicators_) return;
  if (auto* const ranks = dynamic_cast<RanksInStep*>((*communicators_)[0].get())) ranks->set_in_step(in_step);
}

void ReplicaGroup::close_communicators() noexcept {
  for (auto& r : replicas_) {
    r->reducer_context.communicator = nullptr;
    for (ExecContext* ctx : r->contexts()) ctx->stream().set_error_handler({});
  }
  communicators_.reset();
}

}  // namespace vitrine
