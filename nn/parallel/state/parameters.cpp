// SPDX-License-Identifier: Apache-2.0
// Copies parameters, buffers and gradients between replicas and host.
#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/engine_state.h"
#include "runtime/copy.h"
#include "runtime/half.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

/// The same values in a 16-bit dtype.
std::vector<std::byte> narrow_on_host(DType dtype, std::span<const float> wide) {
  std::vector<std::byte> narrow(wide.size() * sizeof(uint16_t));
  const auto count = static_cast<int64_t>(wide.size());
  if (dtype == DType::f16) {
    cpu::narrow(wide.data(), reinterpret_cast<cpu::Half*>(narrow.data()), count);
  } else {
    VITRINE_ASSERT(dtype == DType::bf16, "16-bit copies are f16 or bf16");
    cpu::narrow(wide.data(), reinterpret_cast<cpu::BFloat16*>(narrow.data()), count);
  }
  return narrow;
}

}  // namespace

void widen_on_host(DType dtype, const void* values, int64_t count, float* wide) {
  switch (dtype) {
    case DType::f16:
      return cpu::widen(static_cast<const cpu::Half*>(values), wide, count);
    case DType::bf16:
      return cpu::widen(static_cast<const cpu::BFloat16*>(values), wide, count);
    default:
      std::memcpy(wide, values, static_cast<size_t>(count) * sizeof(float));
  }
}

void note_host_read(DeviceGroup& devices, const char* operation, const ConstView& memory) {
  if (devices.checker() == nullptr || memory.bytes() == 0) return;
  const MemoryAccess access{memory.data, memory.bytes(), false, operation};
  devices.checker()->on_host_access(operation, {&access, 1});
}

void Engine::State::set_replica(Replica& r, std::span<const float> flat) {
  const PhaseScope phase(r.compute(), Phase::replicate);
  const Shape shape{layout.parameter_elements()};
  if (r.parameters) {
    copy(r.compute(), ConstView(flat.data(), shape, DType::f32, DeviceId::host()), r.parameters);
    r.start_average();
    return r.cast_parameters();
  }
  if (config.forward_only) {
    const std::vector<std::byte> narrow = narrow_on_host(r.half_parameters.dtype(), flat);
    copy(r.compute(), ConstView(narrow.data(), shape, r.half_parameters.dtype(), DeviceId::host()), r.half_parameters);
    return r.device.synchronize();
  }
  // The bits that device 0 casts and broadcasts in every step.
  devices.synchronize();
  copy(r.compute(), replica(0).half_parameters, r.half_parameters);
}

void Engine::State::set_parameters(std::span<const float> flat) {
  VITRINE_ASSERT(static_cast<int64_t>(flat.size()) == layout.parameter_elements(),
                 "parameters come in the engine's layout");
  devices.synchronize();
  for_each([&](Replica& r) { set_replica(r, flat); });
  devices.synchronize();
  if (devices.process_count() == 1) return;
  const ProcessGroup::Waiting waiting(*devices.process_group(), "the parameters of rank 0");
  for_each_at_once([&](Replica& r) {
    const PhaseScope phase(r.communication(), Phase::replicate, "parameters");
    r.reduction.communicator->broadcast(r.communication(), r.parameters ? r.parameters : r.half_parameters, 0);
  });
  devices.synchronize();
  for_each([&](Replica& r) {
    r.start_average();
    r.cast_parameters();
  });
  devices.synchronize();
}

void Engine::State::set_buffers(const BufferValues& values) {
  const FlatLayout& saved = buffer_layout.saved();
  VITRINE_ASSERT(static_cast<int64_t>(values.values.size()) == saved.parameter_elements() &&
                     values.counters.size() == buffer_layout.counters().size(),
                 "buffers come in the engine's layout");
  counters = values.counters;
  if (!buffer_layout.any_saved()) return;
  devices.synchronize();
  if (saved.size() > 0) {
    for_each([&](Replica& r) {
      const PhaseScope phase(r.compute(), Phase::replicate);
      copy(r.compute(), ConstView(values.values.data(), r.buffers.shape(), DType::f32, DeviceId::host()), r.buffers);
    });
    devices.synchronize();
  }
  if (devices.process_count() == 1) return;
  ProcessGroup& process_group = *devices.process_group();
  const std::string text =
      process_group.broadcast("the counters of rank 0", fmt::format("{}", fmt::join(counters, " ")));
  const char* at = text.data();
  for (int64_t& counter : counters) at = std::from_chars(at, text.data() + text.size(), counter).ptr + 1;
  if (saved.size() == 0) return;
  const ProcessGroup::Waiting waiting(process_group, "the buffers of rank 0");
  for_each_at_once([&](Replica& r) {
    const PhaseScope phase(r.communication(), Phase::replicate, "buffers");
    r.reduction.communicator->broadcast(r.communication(), r.buffers, 0);
  });
  devices.synchronize();
}

std::vector<float> Engine::State::read_flat(Replica& r, const View& flat) {
  std::vector<float> values(static_cast<size_t>(flat.numel()));
  std::vector<std::byte> narrow(flat.dtype == DType::f32 ? 0 : static_cast<size_t>(flat.bytes()));
  void* const target = narrow.empty() ? static_cast<void*>(values.data()) : narrow.data();
  copy(r.compute(), flat, View{target, flat.shape, flat.dtype, DeviceId::host()});
  devices.synchronize();
  note_host_read(devices, "parameters", ConstView(target, flat.shape, flat.dtype, DeviceId::host()));
  if (!narrow.empty()) widen_on_host(flat.dtype, narrow.data(), flat.numel(), values.data());
  return values;
}

void Engine::set_parameters(std::span<const float> flat) {
  if (state_->averages_in_place) throw OrderError("set_parameters: an AverageScope is open; close it first");
  state_->drain().set_parameters(flat);
}

void Engine::set_buffers(const BufferValues& values) { state_->drain().set_buffers(values); }

BufferValues Engine::buffers(int device) {
  State& s = state_->drain();
  Replica& r = s.replica(device);
  return {r.buffers ? s.read_flat(r, r.buffers) : std::vector<float>(), s.counters};
}

std::vector<float> Engine::parameters(int device) {
  State& s = state_->drain();
  Replica& r = s.replica(device);
  return s.read_flat(r, r.parameters ? r.parameters : r.half_parameters);
}

std::vector<float> Engine::working_parameters(int device) {
  State& s = state_->drain();
  return s.read_flat(s.replica(device), s.replica(device).working_parameters());
}

std::vector<float> Engine::gradients(int device) {
  State& s = state_->drain();
  s.require_training("gradients");
  return s.read_flat(s.replica(device), s.replica(device).parameter_gradients());
}

void Engine::set_loss_scale_state(float scale, int32_t growth_tracker) {
  State& s = state_->drain();
  s.require_training("set_loss_scale_state");
  s.devices.synchronize();
  s.for_each([&](Replica& r) { r.scaler->set_state(r.compute(), scale, growth_tracker); });
}

std::pair<float, int32_t> Engine::loss_scale_state() {
  State& s = state_->drain();
  s.require_training("loss_scale_state");
  Replica& r = s.replica(0);
  if (!r.scaler->state()) {
    throw OrderError(
        "loss_scale_state: losses are not scaled; set Precision::loss_scaling to a fixed or dynamic scale");
  }
  const std::vector<float> values = s.read_flat(r, r.scaler->state());
  return {values[LossScaleState::kScale], static_cast<int32_t>(values[LossScaleState::kGrowthTracker])};
}

}  // namespace vitrine
