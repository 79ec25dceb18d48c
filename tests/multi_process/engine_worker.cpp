// SPDX-License-Identifier: Apache-2.0
// engine_worker DEVICES FOLDER: trains every case of engine_case.h on that many devices of each process; rank 0 writes
// the results into the folder.
#include <stdexcept>

#include "tests/multi_process/engine_case.h"
#include "tests/multi_process/worker.h"

int main(int argc, char** argv) {
  using namespace vitrine::test;
  return run_worker([&](const std::shared_ptr<vitrine::ProcessGroup>& process_group) {
    if (argc != 3) throw std::invalid_argument("usage: engine_worker DEVICES FOLDER");
    for (const EngineCase& engine_case : engine_cases()) {
      try {
        vitrine::DeviceGroup devices(worker_group(process_group, std::stoi(argv[1])));
        const EngineResult result = run_engine_case(engine_case, devices);
        if (process_group->rank() == 0) save_result(std::string(argv[2]) + "/" + engine_case.name, result);
      } catch (const std::exception& error) {
        throw std::runtime_error(engine_case.name + ": " + error.what());
      }
    }
  });
}
