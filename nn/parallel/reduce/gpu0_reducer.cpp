// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.h"
#include "nn/parallel/reduce/reducers.h"

namespace vitrine {

Gpu0Reducer::Gpu0Reducer(const ReducerContext& replica)
    : replica_(replica), wire_(replica), reduction_(replica.device), broadcast_(replica.device) {}

void Gpu0Reducer::reset() {
  reduction_.reset();
  broadcast_.reset();
}

void Gpu0Reducer::finish() {
  if (replica_.world_size < 2) return;
  wire_.pack(0, replica_.layout.parameter_elements());
  reduction_.start(Phase::reduce, "gradients", "backward", [&](ExecContext& communication) {
    wire_.for_each_view(0, replica_.layout.total_elements(), [&](const View& view) {
      replica_.communicator->reduce(communication, view, is_root() ? view : View(), 0);
    });
  });
  reduction_.join("reduce");
  if (is_root()) wire_.unpack();
}

void Gpu0Reducer::distribute() {
  if (replica_.world_size < 2) return;
  ExecContext& compute = replica_.device.compute();
  const Precision& precision = replica_.config.precision;
  const bool sends_half = precision.mixed() && !replica_.layout.any_stays_f32();
  const auto broadcast = [&](ExecContext& communication) {
    replica_.communicator->broadcast(communication, sends_half ? replica_.half_parameters : replica_.parameters, 0);
    if (replica_.loss_scale) replica_.communicator->broadcast(communication, replica_.loss_scale, 0);
  };
  if (is_root()) {
    broadcast_.start(Phase::broadcast, nullptr, "optimizer", broadcast);
  } else {  // it has updated nothing that the broadcast would have to wait for
    const PhaseScope phase(replica_.device.communication(), Phase::broadcast);
    broadcast(replica_.device.communication());
  }
  {
    const PhaseScope phase(compute, Phase::broadcast);
    broadcast_.join("broadcast");
  }
  if (is_root() || sends_half || !precision.mixed()) return;
  const PhaseScope phase(compute, Phase::cast);
  cast(compute, replica_.parameters, replica_.half_parameters);
}

}  // namespace vitrine
