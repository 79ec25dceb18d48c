// SPDX-License-Identifier: Apache-2.0
// Work on all replicas, and what happens when it fails on one.
#include <algorithm>

#include "nn/parallel/engine_state.h"
#include "runtime/copy.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

// As long as the process group takes to find a dead process: an error of a communicator may be a consequence of that.
constexpr int64_t kEchoPatienceMs = 2000;

/// An error of a communicator may be a mere consequence of another failure.
bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Waits for the replica's streams. The first error of a stream becomes `cause`, or `consequence` if it may be a
/// consequence of another.
void wait_for_streams(Replica& r, std::exception_ptr& cause, std::exception_ptr& consequence) {
  for (ExecContext* ctx : r.contexts()) {
    try {
      ctx->stream().synchronize();
    } catch (...) {
      try {
        rethrow_with_prefix(std::current_exception(), r.device.name() + ": ");
      } catch (const CommError&) {
        if (!consequence) consequence = std::current_exception();
      } catch (...) {
        if (!cause) cause = std::current_exception();
      }
    }
  }
}

}  // namespace

void Engine::State::for_each_at_once(const std::function<void(Replica&)>& work) {
  if (threads == nullptr) return for_each(work);
  std::vector<std::exception_ptr> errors(replicas.size());
  threads->run([&](int i) {
    Replica& r = replica(i);
    try {
      work(r);
    } catch (...) {
      errors[static_cast<size_t>(i)] = std::current_exception();
      // The other replicas would wait for this one forever.
      if (communicators) {
        r.reduction.communicator->abort(Reason(r.device.name() + " failed while it issued its work: ") +
                                        reason_of(std::current_exception()));
      }
    }
  });
  // The root cause is the first failure that is not a consequence of another one.
  int cause = -1;
  for (int i = 0; i < size(); ++i) {
    const std::exception_ptr& error = errors[static_cast<size_t>(i)];
    if (!error) continue;
    if (cause < 0 || (!is_comm_error(error) && is_comm_error(errors[static_cast<size_t>(cause)]))) cause = i;
  }
  if (cause >= 0) rethrow_with_prefix(errors[static_cast<size_t>(cause)], replica(cause).device.name() + ": ");
}

void Engine::State::for_each_updating(const std::function<void(Replica&)>& work) {
  for_each_at_once([&](Replica& r) {
    if (r.updates()) work(r);
  });
}

void Engine::State::open_communicators() {
  // Evaluation exchanges nothing between devices; processes get their parameters from rank 0.
  if (devices.world_size() < 2 || (config.forward_only && devices.process_count() == 1)) return;
  communicators = std::make_shared<Communicators>(make_communicators(devices));
  for (auto& r : replicas) {
    r->reduction.communicator = (*communicators)[static_cast<size_t>(r->ordinal)].get();
    const auto abort_peers = [group = communicators, name = r->device.name()](const Reason& reason) {
      (*group)[0]->abort(Reason(name + " failed: ") + reason);
    };
    for (ExecContext* ctx : r->contexts()) ctx->stream().set_error_handler(abort_peers);
  }
}

void Engine::State::close_communicators() noexcept {
  for (auto& r : replicas) {
    r->reduction.communicator = nullptr;
    for (ExecContext* ctx : r->contexts()) ctx->stream().set_error_handler({});
  }
  communicators.reset();
}

bool Engine::State::failed() const {
  if (communicators && !(*communicators)[0]->failure().empty()) return true;
  return std::any_of(replicas.begin(), replicas.end(), [](const std::unique_ptr<Replica>& r) {
    const auto contexts = r->contexts();
    return std::any_of(contexts.begin(), contexts.end(), [](ExecContext* ctx) { return ctx->stream().failed(); });
  });
}

bool Engine::State::is_stuck() const {
  if (communicators && !(*communicators)[0]->failure().empty()) return true;
  return std::any_of(replicas.begin(), replicas.end(),
                     [](const std::unique_ptr<Replica>& r) { return r->compute().stream().lost(); });
}

void Engine::State::throw_if_failed() {
  if (!failed()) return;
  const std::exception_ptr cause = recover();
  VITRINE_ASSERT(cause != nullptr, "a failure has a cause");
  std::rethrow_exception(cause);
}

void Engine::State::report_failure(const std::exception_ptr& error) {
  if (devices.process_group() == nullptr || devices.process_count() == 1) return;
  devices.process_group()->fail(reason_of(error), is_comm_error(error) ? kEchoPatienceMs : 0);
}

void Engine::State::equalize_buffers() {
  if (devices.process_count() > 1 || !replica(0).buffers || config.forward_only) return;
  for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::replicate);
    if (r.ordinal != 0) vitrine::copy(r.compute(), replica(0).buffers, r.buffers);
  });
  devices.synchronize();
}

void Engine::State::reopen_communicators() {
  if (!devices.options().nccl_communicators.empty() || devices.process_count() > 1) return;
  retired.push_back(communicators);
  close_communicators();
  try {
    open_communicators();
  } catch (...) {
    // A lost GPU cannot join again. The aborted communicators stay and fail every later step with their reason.
    communicators = retired.back();
    for (auto& r : replicas) r->reduction.communicator = (*communicators)[static_cast<size_t>(r->ordinal)].get();
    throw;
  }
}

std::exception_ptr Engine::State::recover(const std::exception_ptr& known) {
  // The root cause is the first failure that is not a consequence of another one.
  std::exception_ptr cause, consequence;
  const Reason broken = communicators ? (*communicators)[0]->failure() : Reason();
  if (!broken.empty()) consequence = std::make_exception_ptr(CommError(broken));
  if (known) (is_comm_error(known) ? consequence : cause) = known;
  // GPUs that only found wrong data finish what was issued: it changes nothing, while an abort in the middle might.
  const bool aborts = communicators && (!on_gpus() || is_stuck());
  const std::exception_ptr reported = cause ? cause : consequence;
  if (known || aborts) report_failure(reported ? reported : std::make_exception_ptr(CommError("a step was given up")));
  if (aborts) (*communicators)[0]->abort("a step was given up");
  for (auto& r : replicas) {
    wait_for_streams(*r, cause, consequence);
    r->forget_micro_batch();
  }
  gathered = scattered = Tensor();
  in_flight.clear();
  disturbed = true;
  searches_non_finite = false;
  if (graphs) graphs->forget();
  const auto attempt = [&cause](const auto& work) {
    try {
      work();
    } catch (...) {
      if (!cause) cause = std::current_exception();
    }
  };
  attempt([&] {  // a lost GPU makes no events; nothing will run on it again
    for (auto& r : replicas) r->make_events();
  });
  attempt([&] { equalize_buffers(); });
  if (aborts) attempt([&] { reopen_communicators(); });
  if (devices.checker() != nullptr) devices.checker()->forget_accesses();
  if (cause) report_failure(cause);
  if (const Reason verdict = devices.process_group() != nullptr ? devices.process_group()->failure() : Reason();
      !verdict.empty()) {
    consequence = std::make_exception_ptr(CommError(verdict));
  }
  return cause ? cause : consequence;
}

}  // namespace vitrine
