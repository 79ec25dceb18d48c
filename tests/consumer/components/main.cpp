// SPDX-License-Identifier: Apache-2.0
// Devices without communication: opens two, copies a tensor, and finds no library of MPI in this process.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include <vitrine/runtime/copy.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/host_buffer.h>

using namespace vitrine;

namespace {

bool is_loaded(const char* library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

int run() {
  DeviceGroupOptions options{.devices = parse_device_list("cpu:0-1", 0), .memory_bytes = {int64_t{1} << 20}};
  DeviceGroup devices(options);
  ExecContext& ctx = devices[1].compute();
  HostBuffer source(8), target(8);
  const View from = source.view({2}, DType::f32), to = target.view({2}, DType::f32);
  from.as<float>()[0] = 3.0F;
  from.as<float>()[1] = 4.0F;
  const Tensor x = ctx.allocate({2}, DType::f32, Category::activations, "x");
  copy(ctx, from, x);
  copy(ctx, x, to);
  devices.synchronize();
  if (to.as<float>()[1] != 4.0F) return std::fputs("components: the copy is wrong\n", stderr), 1;
  for (const char* library : {"libmpi", "libnccl", "libcudnn", "libdnnl"}) {
    if (is_loaded(library)) return std::fprintf(stderr, "components: %s is loaded\n", library), 1;
  }
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "components: %s\n", error.what());
    return 1;
  }
}
