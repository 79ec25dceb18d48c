// SPDX-License-Identifier: Apache-2.0
#include "runtime/meta/stream.h"

namespace vitrine {
namespace {

class MetaEvent final : public Event {
 public:
  bool reached() const override { return true; }

 private:
  void do_synchronize() override {}
  double do_elapsed_seconds(const Event&) const override { return 0; }
};

}  // namespace

std::unique_ptr<Event> MetaStream::do_make_event(EventTiming) { return std::make_unique<MetaEvent>(); }

}  // namespace vitrine
