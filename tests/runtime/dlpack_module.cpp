// SPDX-License-Identifier: Apache-2.0
// Library for dlpack_python_test.py: a CPU device that exports and imports DLPack tensors.
#include <cstdio>
#include <exception>

#include "runtime/device.h"
#include "runtime/dlpack.h"

using namespace vitrine;

namespace {

DeviceGroup& devices() {
  static DeviceGroup group([] {
    return DeviceGroupOptions{.devices = {{Backend::cpu, 0}}, .memory_bytes = {1 << 20}};
  }());
  return group;
}

}  // namespace

/// A tensor (2, 3) of 0 to 5, owned by the caller.
extern "C" DLManagedTensor* make_tensor() {
  ExecContext& ctx = devices()[0].compute();
  const Tensor x = ctx.allocate({2, 3}, DType::f32, Category::activations, "x");
  ctx.dispatch({"count", {}, {x}}, [v = x.view()] {
    for (int64_t i = 0; i < v.numel(); ++i) v.as<float>()[i] = static_cast<float>(i);
  });
  devices().synchronize();
  return to_dlpack(x);
}

/// Takes ownership of the tensor and doubles it in place; returns 0, or 1 with the error on stderr if the caller still
/// owns it.
extern "C" int double_tensor(DLManagedTensor* managed) {
  try {
    ExecContext& ctx = devices()[0].compute();
    const Tensor x = from_dlpack(ctx, managed);
    ctx.dispatch({"double", {x}, {x}}, [v = x.view()] {
      for (int64_t i = 0; i < v.numel(); ++i) v.as<float>()[i] *= 2;
    });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

/// Bytes that tensors occupy in the device's memory, and in adopted memory.
extern "C" int64_t held_bytes() {
  const PoolStatistics pool = devices()[0].pool().statistics();
  return pool.allocated_bytes + pool.adopted_bytes;
}
