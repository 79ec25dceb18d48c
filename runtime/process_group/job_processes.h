// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

/// Private to runtime/process_group.
namespace vitrine::process_group {

/// What /proc says about the processes of this MPI job on this machine.
struct JobProcesses {
  int lowest_running_rank = -1;  // -1: unknown
  std::vector<pid_t> stopped = {};
  std::string problem;  // "rank 2 (pid 77) is stopped"; otherwise which ranks were found
};
/// Finds the processes that have this one's MPI namespace (PMIX_NAMESPACE, set by Open MPI 4 and 5 and by Slurm's
/// PMIx).
JobProcesses inspect_job();

}  // namespace vitrine::process_group
