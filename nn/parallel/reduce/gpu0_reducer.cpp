// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/gpu0_reducer.h"

#include "kernels/cast.h"

namespace vitrine {

Gpu0Reducer::Gpu0Reducer(const ReducerContext& replica) : replica_(replica), wire_(replica) {}

void Gpu0Reducer::reset() {
  for (auto* event : {&ready_, &reduced_, &updated_, &received_})
    *event = replica_.device.compute().stream().make_event();
}

void Gpu0Reducer::finish() {
  if (replica_.world_size < 2) return;
  ExecContext& compute = replica_.device.compute();
  ExecContext& communication = replica_.device.communication();
  wire_.pack(0, replica_.layout.parameter_elements());
  compute.record(*ready_);
  {
    const PhaseScope phase(communication, Phase::reduce, "gradients");
    communication.wait(*ready_, "backward");
    wire_.for_each_view(0, replica_.layout.total_elements(), [&](const View& view) {
      replica_.communicator->reduce(communication, view, is_root() ? view : View(), 0);
    });
  }
  communication.record(*reduced_);
  compute.wait(*reduced_, "reduce");
  if (is_root()) wire_.unpack();
}

void Gpu0Reducer::distribute() {
  if (replica_.world_size < 2) return;
  ExecContext& compute = replica_.device.compute();
  ExecContext& communication = replica_.device.communication();
  const Precision& precision = replica_.config.precision;
  const bool sends_half = precision.mixed() && !replica_.layout.any_stays_f32();
  if (is_root()) compute.record(*updated_);
  {
    const PhaseScope phase(communication, Phase::broadcast);
    if (is_root()) communication.wait(*updated_, "optimizer");
    replica_.communicator->broadcast(communication, sends_half ? replica_.half_parameters : replica_.parameters, 0);
    if (replica_.loss_scale) replica_.communicator->broadcast(communication, replica_.loss_scale, 0);
  }
  communication.record(*received_);
  {
    const PhaseScope phase(compute, Phase::broadcast);
    compute.wait(*received_, "broadcast");
  }
  if (is_root() || sends_half || !precision.mixed()) return;
  const PhaseScope phase(compute, Phase::cast);
  cast(compute, replica_.parameters, replica_.half_parameters);
}

}  // namespace vitrine
