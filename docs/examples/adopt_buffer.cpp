// SPDX-License-Identifier: Apache-2.0
// A tensor over existing memory: a CPU device adopts a std::vector, squares it in place with all its threads, and
// passes it to another library as a DLPack tensor. Nothing is copied, and the device's pool does not grow.
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include <vitrine/runtime/device.h>
#include <vitrine/runtime/dlpack.h>
#include <vitrine/runtime/parallel_for.h>

using namespace vitrine;

namespace {

void square(ExecContext& ctx, const View& x) {
  // The function runs later, on the device. Declare the memory that it accesses, and capture the view by value.
  ctx.dispatch({"square", {x}, {x}}, [x] {
    float* const values = x.as<float>();
    parallel_for(x.numel(), 1024, [values](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] *= values[i];
    });
  });
}

int run() {
  DeviceGroupOptions options;
  options.devices = {{Backend::cpu, 0}};
  options.memory_bytes = {int64_t{1} << 20};
  DeviceGroup devices(options);
  ExecContext& ctx = devices[0].compute();

  auto values = std::make_shared<std::vector<float>>(1 << 20, 3.0F);
  bool released = false;
  {
    // The vector lives as long as the release function, which owns a share of it.
    const Tensor x = ctx.adopt(values->data(), {1 << 20}, DType::f32, [values, &released] { released = true; });
    square(ctx, x);
    devices.synchronize();

    // The receiver of the DLPack tensor owns a share of x until it calls the deleter; here it becomes another tensor.
    const Tensor same = from_dlpack(ctx, to_dlpack(x));
    square(ctx, same);
    const PoolStatistics pool = devices[0].pool().statistics();
    std::printf("%s: %lld bytes adopted, %lld bytes of its own\n", devices[0].name().c_str(),
                static_cast<long long>(pool.adopted_bytes), static_cast<long long>(pool.allocated_bytes));
  }  // Waits for the device, then releases the memory.
  std::printf("3 squared twice is %g; the buffer was %s\n", static_cast<double>(values->back()),
              released ? "released" : "kept");
  return values->front() == 81.0F && values->back() == 81.0F && released ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adopt_buffer: %s\n", error.what());
    return 1;
  }
}
