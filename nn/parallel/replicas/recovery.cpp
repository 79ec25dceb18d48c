// SPDX-License-Identifier: Apache-2.0
// What happens when work fails on a replica.
#include <algorithm>

#include "nn/parallel/replicas/replica_group.h"
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

void report_failure(const EngineSetup& setup, const std::exception_ptr& error) {
  if (setup.peers() == nullptr) return;
  setup.peers()->fail(reason_of(error), is_comm_error(error) ? kEchoPatienceMs : 0);
}

void ReplicaGroup::for_each_at_once(const std::function<void(Replica&)>& work) {
  if (threads_ == nullptr) return for_each(work);
  std::vector<std::exception_ptr> errors(replicas_.size());
  threads_->run([&](int i) {
    Replica& r = (*this)[i];
    try {
      work(r);
    } catch (...) {
      errors[static_cast<size_t>(i)] = std::current_exception();
      // The other replicas would wait for this one forever.
      if (communicators_) {
        r.reducer_context.communicator->abort(Reason(r.device.name() + " failed while it issued its work: ") +
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
  if (cause >= 0) rethrow_with_prefix(errors[static_cast<size_t>(cause)], (*this)[cause].device.name() + ": ");
}

bool ReplicaGroup::any_lost() const {
  return std::ranges::any_of(replicas_, [](const std::unique_ptr<Replica>& r) { return r->compute().stream().lost(); });
}

void ReplicaGroup::issue_or_recover(const std::function<void()>& issue) {
  try {
    issue();
  } catch (...) {
    std::rethrow_exception(recover(std::current_exception()));
  }
}

void ReplicaGroup::throw_if_failed(bool asks_gpus) {
  const auto failed = [&](ExecContext* ctx) { return asks_gpus ? ctx->stream().failed() : ctx->stream().has_fault(); };
  const bool any_failed = std::ranges::any_of(replicas_, [&](const std::unique_ptr<Replica>& r) {
    const auto contexts = r->contexts();
    return std::ranges::any_of(contexts, failed);
  });
  if (!any_failed && !is_aborted() && !(asks_gpus && any_lost())) return;
  const std::exception_ptr cause = recover(nullptr);
  VITRINE_ASSERT(cause != nullptr, "a failure has a cause");
  std::rethrow_exception(cause);
}

void ReplicaGroup::equalize_buffers() {
  if (setup_.devices.process_count() > 1 || !(*this)[0].model.buffers || setup_.config.forward_only) return;
  for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::replicate);
    if (r.ordinal() != 0) copy(r.compute(), (*this)[0].model.buffers, r.model.buffers);
  });
  setup_.devices.synchronize();
}

void ReplicaGroup::reopen_communicators() {
  if (!setup_.devices.options().nccl_communicators.empty() || setup_.devices.process_count() > 1) return;
  retired_.push_back(communicators_);
  close_communicators();
  try {
    open_communicators();
  } catch (...) {
    // A lost GPU cannot join again. The aborted communicators stay and fail every later step with their reason.
    communicators_ = retired_.back();
    for (auto& r : replicas_)
      r->reducer_context.communicator = (*communicators_)[static_cast<size_t>(r->ordinal())].get();
    throw;
  }
}

std::exception_ptr ReplicaGroup::recover(const std::exception_ptr& known) {
  // The root cause is the first failure that is not a consequence of another one.
  std::exception_ptr cause, consequence;
  const Reason broken = communicators_ ? (*communicators_)[0]->failure() : Reason();
  if (!broken.empty()) consequence = std::make_exception_ptr(CommError(broken));
  if (known) (is_comm_error(known) ? consequence : cause) = known;
  // GPUs that only found wrong data finish what was issued: it changes nothing, while an abort in the middle might.
  const bool aborts = communicators_ && (!setup_.on_gpus() || is_stuck());
  const std::exception_ptr reported = cause ? cause : consequence;
  if (known || aborts)
    report_failure(setup_, reported ? reported : std::make_exception_ptr(CommError("a step was given up")));
  if (aborts) (*communicators_)[0]->abort("a step was given up");
  for (auto& r : replicas_) {
    wait_for_streams(*r, cause, consequence);
    r->forget_micro_batch();
  }
  const auto attempt = [&cause](const auto& work) {
    try {
      work();
    } catch (...) {
      if (!cause) cause = std::current_exception();
    }
  };
  for (const auto& forget : recovery_handlers_) attempt(forget);
  attempt([&] {  // a lost GPU makes no events; nothing will run on it again
    for (auto& r : replicas_) r->make_events();
  });
  // What one replica has not received, all gather again.
  const bool stale =
      std::ranges::any_of(replicas_, [](const auto& r) { return r->gathered && r->gathered->is_stale(); });
  for (auto& r : replicas_) {
    if (r->gathered) r->gathered->set_stale(stale);
  }
  attempt([&] { equalize_buffers(); });
  if (aborts) attempt([&] { reopen_communicators(); });
  if (setup_.devices.checker() != nullptr) setup_.devices.checker()->forget_accesses();
  if (cause) report_failure(setup_, cause);
  if (const Reason verdict =
          setup_.devices.process_group() != nullptr ? setup_.devices.process_group()->failure() : Reason();
      !verdict.empty()) {
    consequence = std::make_exception_ptr(CommError(verdict));
  }
  return cause ? cause : consequence;
}

}  // namespace vitrine
