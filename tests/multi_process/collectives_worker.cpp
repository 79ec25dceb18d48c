// SPDX-License-Identifier: Apache-2.0
// collectives_worker DEVICES: runs every collective on that many devices of each process.
#include <stdexcept>
#include <string>

#include "tests/multi_process/worker.h"
#include "tests/support/collective_cases.h"

int main(int argc, char** argv) {
  using namespace vitrine::test;
  return run_worker([&](const std::shared_ptr<vitrine::ProcessGroup>& process_group) {
    if (argc != 2) throw std::invalid_argument("usage: collectives_worker DEVICES");
    vitrine::DeviceGroup devices(worker_group(process_group, std::stoi(argv[1])));
    run_collective_cases(devices, false, true);
  });
}
