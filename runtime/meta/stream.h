// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "runtime/stream.h"

namespace vitrine {

/// Stream of a meta device: runs nothing, but the order checker sees every record, wait and operation.
class MetaStream final : public Stream {
 public:
  using Stream::Stream;
  /// From now on keeps all spans until they are taken. Their times only tell the order in which they were issued.
  void keep_spans() { keeps_spans_ = true; }
  void begin_span(const SpanInfo& info) override;
  void end_span(const SpanBytes& bytes) override;
  std::vector<SpanRecord> take_spans() override { return std::exchange(spans_, {}); }
  std::vector<SpanRecord> poll_spans() override { return take_spans(); }
  bool failed() const override { return false; }
  void set_error_handler(std::function<void(const Reason&)>) override {}

 private:
  std::unique_ptr<Event> do_make_event(EventTiming timing) override;
  void do_record(Event&) override {}
  void do_wait(Event&) override {}
  void do_synchronize() override {}

  bool keeps_spans_ = false;
  std::vector<SpanRecord> open_spans_, spans_;
};

}  // namespace vitrine
