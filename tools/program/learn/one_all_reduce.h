// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "nn/parallel/reduce/reducer.h"

namespace vitrine::tools::lab {

/// Reduces all gradients at once after backward, by `op`, and sums the totals of the loss: the Reducer in which the lab
/// plants its bugs.
class OneAllReduce : public Reducer {
 public:
  OneAllReduce(const ReducerContext& replica, ReduceOp op) : replica_(replica), op_(op) {}

  void reset() override {
    for (auto* event : {&ready_, &reduced_}) *event = replica_.device.compute().stream().make_event();
  }
  void add(int64_t /*finished_elements*/) override {}
  void finish() override {
    if (replica_.communicator == nullptr) return;
    ExecContext& compute = replica_.device.compute();
    ExecContext& communication = replica_.device.communication();
    compute.record(*ready_);
    {
      const PhaseScope phase(communication, Phase::reduce);
      communication.wait(*ready_, "backward");
      replica_.communicator->all_reduce(communication, parameter_gradients(), parameter_gradients(), op_);
      replica_.communicator->all_reduce(communication, replica_.tail());
    }
    communication.record(*reduced_);
    compute.wait(*reduced_, "reduce");
  }

 protected:
  const ReducerContext& replica() const { return replica_; }
  View parameter_gradients() const { return replica_.gradients.rows(0, replica_.layout.parameter_elements()); }

 private:
  const ReducerContext& replica_;
  const ReduceOp op_;
  std::unique_ptr<Event> ready_;    // compute: backward is done
  std::unique_ptr<Event> reduced_;  // communication: everything is reduced
};

}  // namespace vitrine::tools::lab
