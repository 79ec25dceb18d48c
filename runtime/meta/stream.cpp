// SPDX-License-Identifier: Apache-2.0
#include "runtime/meta/stream.h"

#include <atomic>

namespace vitrine {
namespace {

class MetaEvent final : public Event {
 public:
  bool reached() const override { return true; }

 private:
  void do_synchronize() override {}
  double do_elapsed_seconds(const Event&) const override { return 0; }
};

/// Counts what streams begin and end.
int64_t next_moment() {
  static std::atomic<int64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void MetaStream::begin_span(const SpanInfo& info) {
  if (keeps_spans_) open_spans_.push_back({info, next_moment(), 0, 0, static_cast<int>(open_spans_.size())});
}

void MetaStream::end_span(const SpanBytes& bytes) {
  if (open_spans_.empty()) return;  // it was opened before keep_spans()
  SpanRecord span = open_spans_.back();
  open_spans_.pop_back();
  span.end_ns = next_moment();
  span.bytes = bytes.moved;
  span.buffer_bytes = bytes.buffers;
  spans_.push_back(span);
}

std::unique_ptr<Event> MetaStream::do_make_event(EventTiming) { return std::make_unique<MetaEvent>(); }

}  // namespace vitrine
