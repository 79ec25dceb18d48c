// SPDX-License-Identifier: Apache-2.0
// Averages of the parameters: how they take the parameters' place, and how the host reads them.
#include <algorithm>

#include <fmt/format.h>

#include "kernels/average.h"
#include "nn/parallel/engine_state.h"
#include "runtime/copy.h"

namespace vitrine {

void Engine::State::exchange_averages() {
  for_each_updating([&](Replica& r) {
    {
      const PhaseScope phase(r.compute(), Phase::evaluate);
      exchange(r.compute(), r.parameters, r.average);
    }
    r.cast_parameters();
  });
  const bool all_update = std::all_of(replicas.begin(), replicas.end(), [](const auto& r) { return r->updates(); });
  if (!all_update) for_each_at_once([](Replica& r) { r.reducer->distribute(); });
}

Engine::State& Engine::with_averages(const char* operation) const {
  State& s = state_->drain();
  s.require_training(operation);
  if (s.config.ema_decay == 0.0) {
    throw ConfigError(fmt::format(
        "{}: this engine keeps no averages of its parameters; set EngineConfig::ema_decay, for example to 0.999",
        operation));
  }
  if (s.averages_in_place) throw OrderError(fmt::format("{}: an AverageScope is open; close it first", operation));
  return s;
}

Engine::AverageScope::AverageScope(Engine& engine) : engine_(engine) {
  State& s = engine.with_averages("AverageScope");
  if (s.current_part != nullptr)
    throw OrderError("AverageScope: a training step is being issued; open it between steps");
  s.issue_or_recover([&] { s.exchange_averages(); });
  s.averages_in_place = true;
}

Engine::AverageScope::~AverageScope() {
  State& s = *engine_.state_;
  s.averages_in_place = false;
  try {
    s.exchange_averages();
  } catch (...) {  // a device has failed: the engine's next operation reports it
  }
}

std::vector<float> Engine::averages(int device) {
  State& s = with_averages("averages");
  Replica& r = s.replica(device);
  if (!r.average)
    throw ConfigError(
        fmt::format("averages: {} does not run the optimizer and holds no averages; ask device 0", r.device.name()));
  return s.read_flat(r, r.average);
}

void Engine::set_averages(std::span<const float> flat) {
  State& s = with_averages("set_averages");
  if (static_cast<int64_t>(flat.size()) != s.layout.parameter_elements()) {
    throw ShapeError(fmt::format("set_averages: got {} values, expected {}, the elements of layout()", flat.size(),
                                 s.layout.parameter_elements()));
  }
  s.devices.synchronize();
  s.for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::replicate);
    if (r.average)
      copy(r.compute(), ConstView(flat.data(), r.average.shape(), DType::f32, DeviceId::host()), r.average);
  });
  s.devices.synchronize();
}

}  // namespace vitrine
