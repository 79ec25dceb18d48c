// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/stream.h"

namespace vitrine {

/// Stream of a meta device: runs nothing, but the order checker sees every record, wait and operation.
class MetaStream final : public Stream {
 public:
  using Stream::Stream;
  void begin_span(const SpanInfo&) override {}
  void end_span(int64_t) override {}
  std::vector<SpanRecord> take_spans() override { return {}; }
  std::vector<SpanRecord> poll_spans() override { return {}; }
  bool failed() const override { return false; }
  void set_error_handler(std::function<void(const Reason&)>) override {}

 private:
  std::unique_ptr<Event> do_make_event(EventTiming timing) override;
  void do_record(Event&) override {}
  void do_wait(Event&) override {}
  void do_synchronize() override {}
};

}  // namespace vitrine
