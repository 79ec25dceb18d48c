// SPDX-License-Identifier: Apache-2.0
#include "tests/multi_process/worker.h"

#include <cstdlib>
#include <exception>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/process_group/join_processes.h"
#include "runtime/process_group/launch.h"

namespace vitrine::test {

int run_worker(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& work) {
  const Launch launch = detect_launch({}, [](const char* name) { return std::getenv(name); });
  std::shared_ptr<ProcessGroup> process_group;
  try {
    ProcessGroupOptions options;
    options.rank = launch.rank;
    options.size = launch.world_size;
    options.timeout_ms = 10000;
    options.exit_after_ms = 2000;
    process_group = std::make_shared<ProcessGroup>(options);
    work(process_group);
    process_group->close();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", launch.rank, error.what());
    std::fflush(stderr);
    if (process_group && !process_group->closed()) process_group->fail(error.what());
    // MPI's finalization would wait for all processes.
    _exit(1);
  }
}

DeviceGroupOptions worker_group(const std::shared_ptr<ProcessGroup>& process_group, int devices) {
  DeviceGroupOptions options;
  for (int i = 0; i < devices; ++i) options.devices.push_back({Backend::cpu, i});
  options.memory_bytes = {int64_t{256} << 20};
  options.threads_per_device = {1};
  options.check_order = true;
  return join_processes(std::move(options), process_group);
}

}  // namespace vitrine::test
