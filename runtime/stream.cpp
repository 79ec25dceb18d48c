// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/order_checker.h"

namespace vitrine {

const char* stream_role_name(StreamRole role) {
  static constexpr const char* kNames[] = {"compute", "copy", "communication"};
  return kNames[static_cast<int>(role)];
}

Event::Event() {
  static std::atomic<uint64_t> next{1};
  id_ = next.fetch_add(1, std::memory_order_relaxed);
}

void Event::synchronize() {
  do_synchronize();
  if (checker_ != nullptr) checker_->on_host_wait_event(id_);
}

double Event::elapsed_seconds(Event& start) {
  for (const Event* event : {static_cast<const Event*>(&start), static_cast<const Event*>(this)}) {
    if (!event->recorded_)
      throw ConfigError("Event::elapsed_seconds: an event was never recorded; record both on a stream first");
    if (event->recorded_on_.backend == Backend::meta) {
      throw UnsupportedError(
          "Event::elapsed_seconds: meta devices run nothing, so no time passes on them; use cpu or cuda devices");
    }
    if (event->timing_ == EventTiming::off) {
      throw UnsupportedError(
          "Event::elapsed_seconds: an event does not keep its time; make it with make_event(EventTiming::on)");
    }
  }
  const DeviceId& from = start.recorded_on_;
  if (from.backend != recorded_on_.backend || (from.backend == Backend::cuda && from.index != recorded_on_.index)) {
    throw DeviceError(
        fmt::format("Event::elapsed_seconds: the events were recorded on {} and {}; different GPUs, or a GPU and a "
                    "CPU, have no common clock",
                    from.str(), recorded_on_.str()));
  }
  start.synchronize();
  synchronize();
  return do_elapsed_seconds(start);
}

Stream::Stream(Identity identity, OrderChecker* checker) : identity_(identity), checker_(checker) {
  if (checker_ != nullptr) checker_index_ = checker_->add_stream(name(), identity_.ordinal);
}

std::string Stream::name() const { return identity_.device.str() + "/" + stream_role_name(identity_.role); }

std::unique_ptr<Event> Stream::make_event(EventTiming timing) {
  std::unique_ptr<Event> event = do_make_event(timing);
  event->timing_ = timing;
  return event;
}

void Stream::record(Event& event) {
  if (checker_ != nullptr) checker_->on_record(checker_index_, event.id());
  event.checker_ = checker_;
  event.recorded_on_ = identity_.device;
  event.recorded_ = true;
  do_record(event);
}

void Stream::wait(Event& event) {
  if (checker_ != nullptr) {
    if (checker_->leaves_out_next_wait()) return;
    checker_->on_wait(checker_index_, event.id());
  }
  do_wait(event);
}

void Stream::begin_capture(std::span<Stream* const> /*joined*/) {
  throw UnsupportedError(name() + ": this stream cannot capture work; only streams that a group created on GPUs can");
}
std::unique_ptr<CapturedWork> Stream::end_capture() {
  throw UnsupportedError(name() + ": this stream captures no work");
}
void Stream::launch(CapturedWork& /*work*/, int64_t /*step*/) {
  throw UnsupportedError(name() + ": this stream captures no work");
}

void Stream::synchronize() {
  // The clock also advances if the work failed, because it is over either way.
  if (checker_ != nullptr) checker_->on_host_wait_stream(checker_index_);
  do_synchronize();
}

}  // namespace vitrine
