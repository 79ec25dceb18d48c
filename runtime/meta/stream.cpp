// SPDX-License-Identifier: Apache-2.0
#include "runtime/meta/stream.h"

namespace vitrine {
namespace {

class MetaEvent final : public Event {
 public:
  bool reached() const override { return true; }

  void do_synchronize() override {}
};

}  // namespace

std::unique_ptr<Event> MetaStream::make_event() { return std::make_unique<MetaEvent>(); }

}  // namespace vitrine
