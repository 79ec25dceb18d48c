// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <vitrine/runtime/reason.h>

namespace vitrine {

/// Looks up an environment variable like std::getenv: nullptr if it is not set.
using Environment = std::function<const char*(const char*)>;

/// How this process was started together with others. Ranks and sizes count processes, not devices.
struct Launch {
  enum class Launcher { single, flags, torchrun, open_mpi, slurm };
  Launcher launcher = Launcher::single;
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // among the processes of this machine
  bool one_machine = false;                  // the launcher says that all processes run on this machine
  std::string master_address;                // machine of rank 0; empty if unknown
  int master_port = 0;                       // 0 if unknown
  bool master_port_taken = false;            // torchrun's agent already listens there, so rank 0 cannot
  std::string run_id;                        // VITRINE_RUN_ID, TORCHELASTIC_RUN_ID, or Slurm's JOB.STEP; empty: none
  Reason note;  // one line for the log: "torchrun: rank 1 of 4, local rank 1 of 2, master 10.0.0.1:29500"
};

/// Rank, world size and local rank as the caller gives them, if at all.
struct LaunchFlags {
  std::optional<int> rank = {}, world_size = {}, local_rank = {};
  bool rendezvous = false;  // given, too: the master is neither needed nor read
};

/// "single", "flags", "torchrun", "Open MPI", "Slurm".
const char* launcher_name(Launch::Launcher launcher);

/// Detects how this process was started. The first of these that applies is used as a whole:
///   flags     rank and world_size, given together. Missing values come from local_rank or LOCAL_RANK,
///             LOCAL_WORLD_SIZE, and MASTER_ADDR with MASTER_PORT; without these, all processes are assumed to run on
///             this machine.
///   torchrun  RANK is set. The other variables alone (WORLD_SIZE, MASTER_PORT, ...) do not count, because other
///             programs set them too; the note names them. Requires WORLD_SIZE, and with several processes LOCAL_RANK,
///             MASTER_ADDR and MASTER_PORT; LOCAL_WORLD_SIZE defaults to WORLD_SIZE.
///   Open MPI  any of OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE is set; requires all four. mpirun in a
///     Slurm allocation is Open MPI.
///             Versions 4 and 5 set the same four. PRTE_LAUNCHED without them (prterun of Open MPI 5) is refused,
///               because it does not give the number of processes.
///   Slurm     SLURM_STEP_ID (SLURM_STEPID) belongs to a step of srun. Requires SLURM_PROCID, SLURM_LOCALID,
///             SLURM_STEP_NUM_TASKS or SLURM_NTASKS, and SLURM_STEP_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE. The master
///             is MASTER_ADDR with MASTER_PORT if both are set, else the step's first host. A batch script or an
///             interactive shell is a single process.
///   single    everything else. Several processes of a launcher of MPI that is not understood (PMI_SIZE of MPICH and
///             Intel MPI, PALS, MVAPICH, MPI_LOCALNRANKS) are refused, because each would run alone.
/// A local_rank without the other two replaces only the local rank. Empty variables count as not set.
/// throws  ConfigError for an incomplete set, naming what is set and what is missing, and for impossible values, naming
///         the variable and its value.
Launch detect_launch(const LaunchFlags& flags, const Environment& env);

/// Returns the secret that the processes of a run share: VITRINE_SECRET, or the content of the file in
/// VITRINE_SECRET_FILE without surrounding white space; empty if neither is set.
///   throws  ConfigError if both are set, if the secret has fewer than 16 bytes, and if the file cannot be read, is not
///   a regular
///           file, is longer than 4096 bytes, belongs to another user, or is accessible to users other than its owner
std::string find_secret(const Environment& env);

}  // namespace vitrine
