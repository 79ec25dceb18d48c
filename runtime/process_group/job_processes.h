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
  bool all_run = false;          // all ranks of the job run on this machine
  std::vector<pid_t> stopped = {};
  std::string problem;  // "rank 2 (pid 77) is stopped", which ranks are missing; otherwise which were found
};
/// Finds the processes that have this one's MPI namespace (PMIX_NAMESPACE, set by Open MPI 4 and 5 and by Slurm's
/// PMIx).
///   size  number of processes of the job
JobProcesses inspect_job(int size);

}  // namespace vitrine::process_group
