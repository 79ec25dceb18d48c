// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "nn/parallel/reduce/overlap.h"
#include "nn/parallel/reduce/reducer.h"

namespace vitrine::tools::lab {

/// Reduces all gradients at once after backward, by `op`, and sums the totals of the loss: the Reducer in which the lab
/// plants its bugs.
class OneAllReduce : public Reducer {
 public:
  OneAllReduce(const ReducerContext& replica, ReduceOp op) : replica_(replica), op_(op), overlap_(replica.device) {}

  void reset() override { overlap_.reset(); }
  void add(int64_t /*finished_elements*/) override {}
  void finish() override {
    if (replica_.communicator == nullptr) return;
    overlap_.start(Phase::reduce, nullptr, "backward", [this](ExecContext& communication) {
      replica_.communicator->all_reduce(communication, parameter_gradients(), parameter_gradients(), op_);
      replica_.communicator->all_reduce(communication, replica_.tail());
    });
    overlap_.join("reduce");
  }

 protected:
  const ReducerContext& replica() const { return replica_; }
  View parameter_gradients() const { return replica_.gradients.rows(0, replica_.layout.parameter_elements()); }

 private:
  const ReducerContext& replica_;
  const ReduceOp op_;
  Overlap overlap_;
};

}  // namespace vitrine::tools::lab
