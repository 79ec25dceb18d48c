// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "kernels/average.h"
#include "nn/parallel/replicas/host_copies.h"
#include "nn/parallel/state/parameters.h"
#include "nn/parallel/state/process_shards.h"
#include "nn/parallel/step/step_window.h"
#include "runtime/copy.h"

namespace vitrine {

void Averages::exchange() {
  replicas_.for_each_updating([&](Replica& r) {
    if (r.gathered) r.gathered->begin_updates();
    {
      const PhaseScope phase(r.compute(), Phase::evaluate);
      for (const ShardPiece& piece : r.optimizer.shard)
        vitrine::exchange(r.compute(), r.parameters_of(piece, r.reducer_context.parameters),
                          piece.of_states(r.optimizer.average));
    }
    r.cast_parameters();
  });
  replicas_.for_each_at_once([](Replica& r) { r.reducer->distribute(); });
}

void Averages::prepare(const char* operation) {
  window_.drain();
  setup_.require_training(operation);
  if (setup_.config.ema_decay == 0.0) {
    throw ConfigError(fmt::format(
        "{}: this engine keeps no averages of its parameters; set EngineConfig::ema_decay, for example to 0.999",
        operation));
  }
  if (in_place_) throw OrderError(fmt::format("{}: an AverageScope is open; close it first", operation));
}

void Averages::enter() {
  prepare("AverageScope");
  replicas_.issue_or_recover([&] { exchange(); });
  in_place_ = true;
}

void Averages::leave() noexcept {
  in_place_ = false;
  try {
    exchange();
  } catch (...) {  // NOLINT: a device has failed: the engine's next operation reports it
  }
}

std::vector<float> Averages::values(int device) {
  prepare("averages");
  Replica& r = replicas_[device];
  if (!r.optimizer.average)
    throw ConfigError(
        fmt::format("averages: {} does not run the optimizer and holds no averages; ask device 0", r.device.name()));
  std::vector<float> values(static_cast<size_t>(setup_.layout.parameter_elements()));
  read_frozen(setup_, r, r.model.parameters, values);  // they are their own average
  read_shards(setup_, replicas_, device, "the averages of the parameters", values,
              [](Replica& owner, const ShardPiece& piece) { return piece.of_states(owner.optimizer.average); });
  return values;
}

void Averages::set(std::span<const float> flat) {
  prepare("set_averages");
  const int64_t elements = setup_.layout.parameter_elements();
  if (static_cast<int64_t>(flat.size()) != elements) {
    throw ShapeError(
        fmt::format("set_averages: got {} values, expected {}, the elements of layout()", flat.size(), elements));
  }
  setup_.devices.synchronize();
  replicas_.for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::replicate);
    if (!r.optimizer.average) return;
    for (const ShardPiece& piece : r.optimizer.shard)
      copy(r.compute(), ConstView(flat.data() + piece.begin, {piece.size()}, DType::f32, DeviceId::host()),
           piece.of_states(r.optimizer.average));
  });
  setup_.devices.synchronize();
}

}  // namespace vitrine
