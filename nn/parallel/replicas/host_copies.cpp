// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/replicas/host_copies.h"

#include <cstring>

#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/half.h"

namespace vitrine {

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
  const MemoryAccess access{memory.data, memory.bytes(), false, operation, memory.device.is_host()};
  devices.checker()->on_host_access(operation, {&access, 1});
}

std::vector<float> read_flat(DeviceGroup& devices, Replica& r, const View& flat) {
  std::vector<float> values(static_cast<size_t>(flat.numel()));
  std::vector<std::byte> narrow(flat.dtype == DType::f32 ? 0 : static_cast<size_t>(flat.bytes()));
  void* const target = narrow.empty() ? static_cast<void*>(values.data()) : narrow.data();
  copy(r.compute(), flat, View{target, flat.shape, flat.dtype, DeviceId::host()});
  devices.synchronize();
  note_host_read(devices, "parameters", ConstView(target, flat.shape, flat.dtype, DeviceId::host()));
  if (!narrow.empty()) widen_on_host(flat.dtype, narrow.data(), flat.numel(), values.data());
  return values;
}

}  // namespace vitrine
