// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/reduce/wire_gradients.h"

/// Private to nn/parallel.
namespace vitrine {

/// Device 0 gets the sums after backward, updates all parameters and broadcasts them, as torch.nn.DataParallel does.
class Gpu0Reducer final : public Reducer {
 public:
  explicit Gpu0Reducer(const ReducerContext& replica);

  bool updates() const override { return is_root(); }
  void begin_step(int64_t step) override { wire_.begin_step(step); }
  void add(int64_t) override {}  // all gradients are summed at once
  void finish() override;
  void distribute() override;
  void reset() override;
  View error() const override { return wire_.error(); }

 private:
  bool is_root() const { return replica_.rank == 0; }

  const ReducerContext& replica_;
  WireGradients wire_;
  std::unique_ptr<Event> ready_;     // compute: the gradients are final
  std::unique_ptr<Event> reduced_;   // communication: they are summed on device 0
  std::unique_ptr<Event> updated_;   // compute of device 0: the parameters are updated
  std::unique_ptr<Event> received_;  // communication: the parameters have arrived
};

}  // namespace vitrine
