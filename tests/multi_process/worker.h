// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "runtime/device.h"
#include "runtime/process_group/process_group.h"

/// Common part of the programs that tests start with mpirun.
namespace vitrine::test {

/// Joins the process group over MPI, does the work, and leaves. Returns the exit status: 1 after an error, which is
/// printed to stderr.
int run_worker(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& work);

/// CPU devices with one thread each, with the order check on.
DeviceGroupOptions worker_group(const std::shared_ptr<ProcessGroup>& process_group, int devices);

}  // namespace vitrine::test
