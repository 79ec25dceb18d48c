// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "runtime/device.h"
#include "runtime/process_group/process_group.h"

/// What the programs do that tests start by mpirun.
namespace vitrine::test {

/// Meets the other processes over MPI, does the work, and leaves. Returns the exit status: 1 after an error, which is told on stderr.
int run_worker(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& work);

/// CPU devices of one thread each, whose order is checked.
DeviceGroupOptions worker_group(const std::shared_ptr<ProcessGroup>& process_group, int devices);

}  // namespace vitrine::test
