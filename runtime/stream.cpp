// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include "runtime/order_checker.h"

namespace vitrine {

const char* stream_role_name(StreamRole role) {
  switch (role) {
    case StreamRole::compute:
      return "compute";
    case StreamRole::copy:
      return "copy";
    case StreamRole::communication:
      return "communication";
  }
  return "?";
}

Event::Event() {
  static std::atomic<uint64_t> next{1};
  id_ = next.fetch_add(1, std::memory_order_relaxed);
}

void Event::synchronize() {
  do_synchronize();
  if (checker_ != nullptr) checker_->on_host_wait_event(id_);
}

Stream::Stream(Identity identity, OrderChecker* checker) : identity_(identity), checker_(checker) {
  if (checker_ != nullptr) checker_index_ = checker_->add_stream(name());
}

std::string Stream::name() const { return identity_.device.str() + "/" + stream_role_name(identity_.role); }

void Stream::record(Event& event) {
  if (checker_ != nullptr) checker_->on_record(checker_index_, event.id());
  event.checker_ = checker_;
  do_record(event);
}

void Stream::wait(Event& event) {
  if (checker_ != nullptr) {
    if (checker_->leaves_out_next_wait()) return;
    checker_->on_wait(checker_index_, event.id());
  }
  do_wait(event);
}

void Stream::synchronize() {
  // The clock moves even when the work failed: it is over either way.
  if (checker_ != nullptr) checker_->on_host_wait_stream(checker_index_);
  do_synchronize();
}

}  // namespace vitrine
