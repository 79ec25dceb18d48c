// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/reduce/overlap.h"
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
  Overlap reduction_, broadcast_;
};

}  // namespace vitrine
