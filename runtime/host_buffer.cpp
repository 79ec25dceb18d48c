// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_buffer.h"

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "runtime/cuda/device.h"
#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine {
namespace {

constexpr size_t kAlignment = 4096;

}  // namespace

HostBuffer::HostBuffer(int64_t bytes, HostMemory kind) {
  VITRINE_ASSERT(bytes >= 0, "a host buffer cannot have a negative size");
  const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  const size_t capacity = rounded > 0 ? rounded : kAlignment;
  void* memory = kind == HostMemory::pinned ? cuda::allocate_pinned(static_cast<int64_t>(capacity))
                                            : std::aligned_alloc(kAlignment, capacity);
  if (memory == nullptr) {
    throw OutOfMemory(
        fmt::format("HostBuffer: cannot allocate {} of host memory; use smaller batches", format_bytes(bytes)),
        {.memory = MemoryShortage::Memory::host, .user = "HostBuffer", .needed_bytes = bytes});
  }
  memory_ = {memory, Release{bytes, kind}};
  // Map the pages now rather than in the first step.
  std::memset(memory, 0, capacity);
}

View HostBuffer::view(const Shape& shape, DType dtype) const {
  if (shape.numel() > bytes() / size_of(dtype)) {
    throw ShapeError(fmt::format("HostBuffer::view: shape {} of {} does not fit into a buffer of {} bytes", shape.str(),
                                 dtype_name(dtype), bytes()));
  }
  return {memory_.get(), shape, dtype, DeviceId::host()};
}

void HostBuffer::Release::operator()(void* p) const noexcept {
  if (kind == HostMemory::pinned) {
    cuda::free_pinned(p);
  } else {
    std::free(p);
  }
}

}  // namespace vitrine
