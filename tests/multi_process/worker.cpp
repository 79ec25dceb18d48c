// SPDX-License-Identifier: Apache-2.0
#include "tests/multi_process/worker.h"

#include <cstdlib>
#include <exception>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/world/launch.h"

namespace vitrine::test {

int run_worker(const std::function<void(const std::shared_ptr<World>&)>& work) {
  const Launch launch = detect_launch({}, [](const char* name) { return std::getenv(name); });
  std::shared_ptr<World> world;
  try {
    WorldOptions options;
    options.rank = launch.rank;
    options.size = launch.world_size;
    options.timeout_ms = 10000;
    options.exit_after_ms = 2000;
    world = std::make_shared<World>(options);
    work(world);
    world->close();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", launch.rank, error.what());
    std::fflush(stderr);
    if (world && !world->closed()) world->fail(error.what());
    // MPI's end would wait for all.
    _exit(1);
  }
}

DeviceGroupOptions worker_group(const std::shared_ptr<World>& world, int devices) {
  DeviceGroupOptions options;
  for (int i = 0; i < devices; ++i) options.devices.push_back({Backend::cpu, i});
  options.world = world;
  options.memory_bytes = {int64_t{256} << 20};
  options.threads_per_device = {1};
  options.check_order = true;
  return options;
}

}  // namespace vitrine::test
