// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine {

/// Variables that a launcher of several processes sets: the number of its processes, of all or of this machine's, and
/// this process's rank among all or those.
struct MpiLauncher {
  const char* whose;
  const char* size;
  const char* rank;
};

/// Only Open MPI's are understood (detect_launch()).
inline constexpr MpiLauncher kMpiLaunchers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"the mpiexec of MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK"},
    {"PALS", "PALS_LOCAL_SIZE", "PALS_RANKID"},
    {"MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    {"the mpiexec of MPICH or Intel MPI", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"mpirun_rsh of MVAPICH", "MPIRUN_NPROCS", "MPIRUN_RANK"},
    {"horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"},
    {"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"},
    {"Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
};

}  // namespace vitrine
