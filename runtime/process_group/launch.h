// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace vitrine {

/// Looks up an environment variable, as std::getenv does: nullptr when it is not set.
using Environment = std::function<const char*(const char*)>;

/// How this process was started among others. Ranks and sizes are of processes, not of devices.
struct Launch {
  enum class Launcher { single, flags, torchrun, open_mpi, slurm };
  Launcher launcher = Launcher::single;
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // among the processes on this machine
  bool one_machine = false;                  // the launcher says that all processes are on this machine
  std::string master_address;                // of rank 0's machine; empty when nothing tells
  int master_port = 0;                       // 0 when nothing tells
  bool master_port_taken = false;            // torchrun's agent listens there already: rank 0 cannot
  std::string note;                          // one line for the log: "torchrun: rank 1 of 4, local rank 1 of 2, master 10.0.0.1:29500"
};

/// --rank, --world-size and --local-rank, as far as given.
struct LaunchFlags {
  std::optional<int> rank = {}, world_size = {}, local_rank = {};
};

/// "single", "flags", "torchrun", "Open MPI", "Slurm".
const char* launcher_name(Launch::Launcher launcher);

/// Finds out how this process was started; the first of these that applies counts as a whole:
///   flags     --rank and --world-size, which go together. What they do not say comes from --local-rank or LOCAL_RANK, LOCAL_WORLD_SIZE, and
///             MASTER_ADDR with MASTER_PORT; without these all processes count as being on this machine.
///   torchrun  RANK is set. Its companions alone (WORLD_SIZE, MASTER_PORT, ...) do not make a set, for other programs set them too; the note names
///   them.
///             Needs WORLD_SIZE, and in a process group of several LOCAL_RANK, MASTER_ADDR and MASTER_PORT; LOCAL_WORLD_SIZE defaults to WORLD_SIZE.
///   Open MPI  any of OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE is set; needs all four. mpirun in a Slurm allocation is Open MPI.
///             Versions 4 and 5 set the same four. PRTE_LAUNCHED without them (prterun, of Open MPI 5) is refused: it does not say how many there
///             are.
///   Slurm     SLURM_STEP_ID (SLURM_STEPID) is that of a step of srun's. Needs SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, and
///             SLURM_STEP_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE. The master is MASTER_ADDR with MASTER_PORT when both are set, else the step's
///             first host. A batch script or an interactive shell by itself is a single process.
///   single    everything else.
/// --local-rank without the other two replaces the local rank alone. Empty variables count as not set.
/// throws  ConfigError on an incomplete set, naming what is set and what is missing, and on values that cannot be, naming the variable and its value.
Launch detect_launch(const LaunchFlags& flags, const Environment& env);

/// Whether torchrun's agent itself listens on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE is "True").
bool torchrun_agent_listens(const Environment& env);

}  // namespace vitrine
