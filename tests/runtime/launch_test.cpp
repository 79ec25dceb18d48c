// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/launch.h"

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

using Launcher = Launch::Launcher;
using Variables = std::map<std::string, std::string>;

Launch detect(const Variables& variables, const LaunchFlags& flags = {}) {
  return detect_launch(flags, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string message_of(const Variables& variables, const LaunchFlags& flags = {}) {
  try {
    return "accepted: " + detect(variables, flags).note.str();
  } catch (const ConfigError& e) {
    return e.what();
  }
}

using Place = std::array<int, 4>;  // rank, world size, local rank, local world size
Place place_of(const Launch& launch) {
  return {launch.rank, launch.world_size, launch.local_rank, launch.local_world_size};
}

/// `base` with some variables replaced, and those without a value removed.
Variables with(Variables base, const std::vector<std::pair<std::string, const char*>>& changes) {
  for (const auto& [name, value] : changes) {
    base.erase(name);
    if (value != nullptr) base[name] = value;
  }
  return base;
}

Variables merged(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "6"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "10.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "4"},
                         {"OMPI_COMM_WORLD_SIZE", "5"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
const Variables kPrterun{{"PRTE_LAUNCHED", "1"}, {"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-host-1@1"}};
const Variables kBatch{{"SLURM_JOB_ID", "815"}, {"SLURM_PROCID", "0"},         {"SLURM_LOCALID", "0"},
                       {"SLURM_NODEID", "0"},   {"SLURM_TASKS_PER_NODE", "4"}, {"SLURM_JOB_NODELIST", "job[1-9]"}};
const Variables kSlurm{{"SLURM_JOB_ID", "815"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "8"},
                       {"SLURM_STEP_NUM_TASKS", "9"},
                       {"SLURM_NTASKS", "12"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_STEP_TASKS_PER_NODE", "4(x2),1"},
                       {"SLURM_STEP_NODELIST", "node[01-02,7]"},
                       {"SLURM_JOB_NODELIST", "job[1-9]"}};

void expect_launch(const char* name, const Variables& variables, Launcher launcher, const Place& place,
                   const char* note, const LaunchFlags& flags = {}) {
  SCOPED_TRACE(name);
  Launch launch;
  ASSERT_NO_THROW(launch = detect(variables, flags)) << message_of(variables, flags);
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(place_of(launch), place);
  EXPECT_EQ(launch.note, note);
}

TEST(Launch, UnderstandsEveryLauncher) {
  const Variables machine{{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
  const Variables master{{"MASTER_ADDR", "head"}, {"MASTER_PORT", "4000"}};
  const Variables old_slurm{{"SLURM_STEPID", "3"},  {"SLURM_PROCID", "1"},          {"SLURM_NTASKS", "2"},
                            {"SLURM_LOCALID", "1"}, {"SLURM_NTASKS_PER_NODE", "4"}, {"SLURM_NODELIST", "a,b"}};
  expect_launch("nothing", {}, Launcher::single, {0, 1, 0, 1}, "single process: no launcher's variables are set");
  expect_launch("flags", {}, Launcher::flags, {1, 4, 1, 4}, "flags: rank 1 of 4, local rank 1 of 4", {1, 4});
  expect_launch("all flags", {}, Launcher::flags, {3, 4, 1, 4},
                "flags: rank 3 of 4, local rank 1 of 4 (LaunchFlags::local_rank)", {3, 4, 1});
  expect_launch("flags for one", {}, Launcher::flags, {0, 1, 0, 1}, "flags: rank 0 of 1, local rank 0 of 1", {0, 1});
  expect_launch("flags, two machines", merged(machine, master), Launcher::flags, {3, 4, 1, 2},
                "flags: rank 3 of 4, local rank 1 of 2, master head:4000", {3, 4});
  expect_launch("torchrun", kTorchrun, Launcher::torchrun, {3, 6, 1, 2},
                "torchrun: rank 3 of 6, local rank 1 of 2, master 10.0.0.1:29500");
  expect_launch("IPv6", with(kTorchrun, {{"MASTER_ADDR", "fe80::1"}}), Launcher::torchrun, {3, 6, 1, 2},
                "torchrun: rank 3 of 6, local rank 1 of 2, master [fe80::1]:29500");
  expect_launch("torchrun for one", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Launcher::torchrun, {0, 1, 0, 1},
                "torchrun: rank 0 of 1, local rank 0 of 1");
  expect_launch("Open MPI", kOpenMpi, Launcher::open_mpi, {4, 5, 0, 1}, "Open MPI: rank 4 of 5, local rank 0 of 1");
  expect_launch("Open MPI 5", merged(kPrterun, kOpenMpi), Launcher::open_mpi, {4, 5, 0, 1},
                "Open MPI: rank 4 of 5, local rank 0 of 1");
  expect_launch("Slurm with PMIx", with(kSlurm, {{"PMIX_RANK", "8"}}), Launcher::slurm, {8, 9, 0, 1},
                "Slurm: rank 8 of 9, local rank 0 of 1, master node01");
  expect_launch("Slurm", kSlurm, Launcher::slurm, {8, 9, 0, 1}, "Slurm: rank 8 of 9, local rank 0 of 1, master node01");
  expect_launch("Slurm's older names", old_slurm, Launcher::slurm, {1, 2, 1, 2},
                "Slurm: rank 1 of 2, local rank 1 of 2, master a");
  expect_launch("the job's hosts", with(kSlurm, {{"SLURM_STEP_NODELIST", nullptr}}), Launcher::slurm, {8, 9, 0, 1},
                "Slurm: rank 8 of 9, local rank 0 of 1, master job1");
  expect_launch("no hosts", with(kSlurm, {{"SLURM_STEP_NODELIST", nullptr}, {"SLURM_JOB_NODELIST", nullptr}}),
                Launcher::slurm, {8, 9, 0, 1}, "Slurm: rank 8 of 9, local rank 0 of 1");
  expect_launch("a master from the batch script", merged(kSlurm, master), Launcher::slurm, {8, 9, 0, 1},
                "Slurm: rank 8 of 9, local rank 0 of 1, master head:4000");
  expect_launch("a foreign MASTER_PORT", with(kSlurm, {{"MASTER_PORT", "tcp://10.0.0.7:80"}}), Launcher::slurm,
                {8, 9, 0, 1}, "Slurm: rank 8 of 9, local rank 0 of 1, master node01");
  expect_launch("batch script", kBatch, Launcher::single, {0, 1, 0, 1},
                "single process: SLURM_JOB_ID=815 but no step of srun; use srun to start several processes");
  expect_launch("interactive shell", with(kBatch, {{"SLURM_STEP_ID", "4294967290"}}), Launcher::single, {0, 1, 0, 1},
                "single process: SLURM_JOB_ID=815 but no step of srun; use srun to start several processes");
  expect_launch("companions of RANK", {{"WORLD_SIZE", "8"}, {"MASTER_PORT", "tcp://10.0.0.7:80"}}, Launcher::single,
                {0, 1, 0, 1},
                "single process: WORLD_SIZE=8, MASTER_PORT=tcp://10.0.0.7:80 without RANK does not mean torchrun");
  expect_launch("empty variables", {{"RANK", ""}, {"OMPI_COMM_WORLD_RANK", ""}, {"SLURM_STEP_ID", ""}},
                Launcher::single, {0, 1, 0, 1}, "single process: no launcher's variables are set");
  expect_launch("one process of MPICH", {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}, {"MPI_LOCALNRANKS", "1"}},
                Launcher::single, {0, 1, 0, 1}, "single process: no launcher's variables are set");
  expect_launch("Slurm with PMI 2", with(kSlurm, {{"PMI_SIZE", "9"}, {"PMI_RANK", "8"}}), Launcher::slurm, {8, 9, 0, 1},
                "Slurm: rank 8 of 9, local rank 0 of 1, master node01");
  expect_launch("LaunchFlags::local_rank 0 alone", {}, Launcher::single, {0, 1, 0, 1},
                "single process: no launcher's variables are set", {{}, {}, 0});
}

TEST(Launch, FindsTheMaster) {
  struct Case {
    Variables variables;
    LaunchFlags flags;
    const char* address;
    int port;
    bool taken;
  };
  const Case cases[] = {
      {{}, {}, "", 0, false},
      {kTorchrun, {}, "10.0.0.1", 29500, true},
      {with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), {}, "10.0.0.1", 29500, false},
      {with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", nullptr}}), {}, "10.0.0.1", 29500, false},
      {kTorchrun, {1, 2}, "10.0.0.1", 29500, true},
      {with(kTorchrun, {{"MASTER_PORT", nullptr}}), {1, 2}, "", 0, false},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}, {}, "", 0, false},
      {with(kTorchrun, {{"MASTER_ADDR", nullptr}}), {.rendezvous = true}, "", 0, false},
      {with(kTorchrun, {{"MASTER_PORT", "tcp://10.0.0.7:80"}}), {.rendezvous = true}, "", 0, false},
      {kOpenMpi, {}, "", 0, false},
      {kSlurm, {}, "node01", 0, false},
      {with(kSlurm, {{"MASTER_ADDR", "head"}}), {}, "node01", 0, false},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "node[01"}}), {.rendezvous = true}, "", 0, false},
      {with(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "65535"}}), {}, "head", 65535, false},
  };
  for (const Case& c : cases) {
    const Launch launch = detect(c.variables, c.flags);
    EXPECT_EQ(launch.master_address, c.address) << launch.note.str();
    EXPECT_EQ(launch.master_port, c.port) << launch.note.str();
    EXPECT_EQ(launch.master_port_taken, c.taken) << launch.note.str();
  }
}

TEST(Launch, UsesTheFirstCompleteLauncher) {
  const Variables mpirun_in_slurm = merged(kOpenMpi, kSlurm), all = merged(kTorchrun, mpirun_in_slurm);
  const auto expect = [](const Variables& variables, Launcher launcher, const Place& place,
                         const std::string& note_ends, const LaunchFlags& flags = {}) {
    const Launch launch = detect(variables, flags);
    EXPECT_EQ(launch.launcher, launcher) << launch.note.str();
    EXPECT_EQ(place_of(launch), place);
    EXPECT_TRUE(launch.note.str().ends_with(note_ends)) << launch.note.str();
  };
  expect(with(all, {{"LOCAL_WORLD_SIZE", nullptr}}), Launcher::flags, {0, 2, 0, 2},
         "; variables of torchrun and Open MPI and Slurm are set too and not used", {0, 2, 0});
  expect(all, Launcher::torchrun, {3, 6, 1, 2}, "; variables of Open MPI and Slurm are set too and not used");
  expect(mpirun_in_slurm, Launcher::open_mpi, {4, 5, 0, 1},
         "local rank 0 of 1; variables of Slurm are set too and not used");
  expect(merged(kOpenMpi, kBatch), Launcher::open_mpi, {4, 5, 0, 1}, "local rank 0 of 1");
  expect(merged(kTorchrun, kBatch), Launcher::torchrun, {3, 6, 1, 2}, "master 10.0.0.1:29500");
  expect(merged(kTorchrun, kSlurm), Launcher::torchrun, {3, 6, 1, 2}, "; variables of Slurm are set too and not used");
  expect(with(mpirun_in_slurm, {{"WORLD_SIZE", "7"}}), Launcher::open_mpi, {4, 5, 0, 1},
         "Slurm are set too and not used");
}

TEST(Launch, LocalRankOverridesTheLaunchersLocalRank) {
  const std::tuple<Variables, Launcher, Place> cases[] = {
      {kTorchrun, Launcher::torchrun, {3, 6, 0, 2}},
      {with(kTorchrun, {{"LOCAL_RANK", nullptr}}), Launcher::torchrun, {3, 6, 0, 2}},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "7"}}), Launcher::open_mpi, {4, 5, 0, 1}},
      {with(kSlurm, {{"SLURM_LOCALID", nullptr}}), Launcher::slurm, {8, 9, 0, 1}},
  };
  for (const auto& [variables, launcher, place] : cases) {
    const Launch launch = detect(variables, {.local_rank = 0});
    EXPECT_EQ(launch.launcher, launcher);
    EXPECT_EQ(place_of(launch), place);
    expect_contains(launch.note.str(), "(LaunchFlags::local_rank)");
  }
}

void expect_refused(const Variables& variables, const std::string& part, const LaunchFlags& flags = {}) {
  const std::string message = message_of(variables, flags);
  expect_contains(message, part);
}

TEST(Launch, NamesMissingVariables) {
  const char* const all_of_slurm =
      "incomplete: SLURM_STEP_ID=0 set, but not SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), SLURM_LOCALID, "
      "SLURM_STEP_TASKS";
  expect_refused({}, "LaunchFlags::rank 1 set, but not LaunchFlags::world_size; give both", {1, {}});
  expect_refused({}, "LaunchFlags::world_size 2 set, but not LaunchFlags::rank; give both", {{}, 2});
  expect_refused(kTorchrun, "LaunchFlags::world_size 2 set, but not LaunchFlags::rank", {{}, 2, 0});
  expect_refused({{"RANK", "1"}},
                 "torchrun's variables are incomplete: RANK=1 set, but not WORLD_SIZE, LOCAL_RANK, "
                 "MASTER_ADDR, MASTER_");
  expect_refused({{"RANK", "1"}},
                 "RANK=1, LaunchFlags::local_rank 1 set, but not WORLD_SIZE, MASTER_ADDR, "
                 "MASTER_PORT; set the rest",
                 {{}, {}, 1});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}},
                 "incomplete: RANK=0, WORLD_SIZE=2 set, but not LOCAL_RANK, MASTER_ADDR, MASTER_PORT;");
  expect_refused(with(kTorchrun, {{"WORLD_SIZE", nullptr}}), "but not WORLD_SIZE;");
  expect_refused(with(kTorchrun, {{"LOCAL_RANK", nullptr}}), "but not LOCAL_RANK;");
  expect_refused(with(kTorchrun, {{"MASTER_ADDR", nullptr}}),
                 "but not MASTER_ADDR; set the rest as torchrun does, or unset RANK");
  expect_refused(with(kTorchrun, {{"MASTER_PORT", ""}}), "but not MASTER_PORT;");
  expect_refused(merged({{"RANK", "1"}}, kOpenMpi), "torchrun's variables are incomplete");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", nullptr}}),
                 "but not OMPI_COMM_WORLD_RANK; start with mpirun");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", nullptr}}), "but not OMPI_COMM_WORLD_SIZE;");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", nullptr}}), "but not OMPI_COMM_WORLD_LOCAL_RANK;");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", nullptr}}), "but not OMPI_COMM_WORLD_LOCAL_SIZE;");
  expect_refused(kPrterun,
                 "PRTE_LAUNCHED=1 and PMIX_RANK=1 are set, but none of Open MPI's variables: prterun does not set the "
                 "number of processes");
  expect_refused(merged(kPrterun, kSlurm),
                 "start with mpirun, give LaunchFlags::rank and LaunchFlags::world_size, or unset PRTE_LAUNCHED");
  expect_refused({{"SLURM_STEP_ID", "0"}}, all_of_slurm);
  expect_refused(with(kSlurm, {{"SLURM_PROCID", nullptr}}), "but not SLURM_PROCID; start with srun");
  expect_refused(with(kSlurm, {{"SLURM_NODEID", nullptr}}),
                 "SLURM_STEP_TASKS_PER_NODE=4(x2),1 set, but not SLURM_NODEID; start with srun");
}

/// Each of their processes would train alone.
TEST(Launch, RefusesLaunchersThatItDoesNotUnderstand) {
  const std::pair<Variables, const char*> cases[] = {
      {{{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}, "PMI_SIZE=2, PMI_RANK=0 set, as by the mpiexec of MPICH or Intel MPI, "},
      {{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "1"}}, "unset PMI_SIZE and PMI_RANK for a single "},
      {{{"PMI_RANK", "1"}}, "PMI_RANK=1 set, as by"},
      {{{"PALS_LOCAL_SIZE", "2"}, {"PALS_RANKID", "0"}}, "PALS_LOCAL_SIZE=2, PALS_RANKID=0 set, as by PALS, "},
      {{{"PALS_LOCAL_SIZE", "1"}, {"PALS_RANKID", "1"}}, "PALS_RANKID=1 set"},  // on two machines
      {{{"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "0"}}, "MPI_LOCALNRANKS=2, MPI_LOCALRANKID=0 set"},
      {{{"MV2_COMM_WORLD_SIZE", "2"}}, "MV2_COMM_WORLD_SIZE=2 set, as by MVAPICH"},
      {{{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}}, "HOROVOD_SIZE=2, HOROVOD_RANK=1 set, as by horovodrun"},
      {{{"JSM_NAMESPACE_RANK", "1"}}, "JSM_NAMESPACE_RANK=1 set, as by jsrun"},
      {{{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "0"}}, "FLUX_JOB_SIZE=2, FLUX_TASK_RANK=0 set, as by Flux"},
      {merged(kBatch, {{"PMI_SIZE", "2"}}), "PMI_SIZE=2 set"},
      {with(kSlurm, {{"PMI_SIZE", "18"}, {"PMI_RANK", "3"}}), "PMI_SIZE=18, PMI_RANK=3 set"},  // srun started proxies
  };
  for (const auto& [variables, part] : cases) expect_refused(variables, part);
  EXPECT_EQ(detect(cases[0].first, {1, 2}).launcher, Launcher::flags) << "the remedy";
  EXPECT_EQ(detect(merged(kOpenMpi, cases[0].first)).launcher, Launcher::open_mpi);
}

TEST(Launch, NamesInvalidValues) {
  expect_refused({}, "LaunchFlags::rank 4: expected an integer from 0 to 3, as LaunchFlags::world_size 4; correct it",
                 {4, 4});
  expect_refused({}, "LaunchFlags::rank -1: expected an integer from 0 to 3", {-1, 4});
  expect_refused({}, "LaunchFlags::world_size 0: expected an integer from 1", {0, 0});
  expect_refused({}, "LaunchFlags::rank 1: expected 0, as LaunchFlags::world_size 1", {1, 1});
  expect_refused({}, "LaunchFlags::local_rank 4: expected an integer from 0 to 3, as LaunchFlags::world_size 4",
                 {0, 4, 4});
  expect_refused({}, "LaunchFlags::local_rank 1: expected 0, as this is a single process", {{}, {}, 1});
  expect_refused({{"LOCAL_WORLD_SIZE", "5"}},
                 "LOCAL_WORLD_SIZE=5: expected an integer from 1 to 4, as LaunchFlags::world_size 4", {0, 4});
  expect_refused({{"LOCAL_WORLD_SIZE", "2"}},
                 "LaunchFlags::rank 3: expected an integer from 0 to 1, as LOCAL_WORLD_SIZE=2", {3, 4});
  expect_refused(kTorchrun, "LaunchFlags::local_rank 2: expected an integer from 0 to 1, as LOCAL_WORLD_SIZE=2",
                 {{}, {}, 2});
  expect_refused(with(kTorchrun, {{"RANK", "6"}}),
                 "RANK=6: expected an integer from 0 to 5, as WORLD_SIZE=6; correct it, or unset it");
  expect_refused(with(kTorchrun, {{"RANK", "-1"}}), "RANK=-1: expected");
  expect_refused(with(kTorchrun, {{"RANK", "one"}}), "RANK=one: expected");
  expect_refused(with(kTorchrun, {{"RANK", "1x"}}), "RANK=1x: expected");
  expect_refused(with(kTorchrun, {{"RANK", " 1"}}), "RANK= 1: expected");
  expect_refused(with(kTorchrun, {{"RANK", "99999999999"}}), "RANK=99999999999: expected");
  expect_refused(with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: expected");
  expect_refused(with(kTorchrun, {{"WORLD_SIZE", "4.0"}}), "WORLD_SIZE=4.0: expected");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "2147483647"}}),
                 "OMPI_COMM_WORLD_SIZE=2147483647: expected an integer from 1 to 1048576");
  expect_refused(with(kTorchrun, {{"LOCAL_RANK", "2"}}),
                 "LOCAL_RANK=2: expected an integer from 0 to 1, as LOCAL_WORLD_SIZE=2");
  expect_refused(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "7"}}),
                 "LOCAL_WORLD_SIZE=7: expected an integer from 1 to 6, as WORLD_SIZE=6");
  expect_refused(with(kTorchrun, {{"MASTER_PORT", "65536"}}), "MASTER_PORT=65536: expected an integer from 1 to 65535");
  expect_refused(with(kTorchrun, {{"MASTER_PORT", "0"}}), "MASTER_PORT=0: expected");
  expect_refused(with(kTorchrun, {{"MASTER_PORT", "tcp://10.0.0.7:80"}}), "MASTER_PORT=tcp://10.0.0.7:80: expected");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "5"}}),
                 "OMPI_COMM_WORLD_RANK=5: expected an integer from 0 to 4, as OMPI_COMM_WORLD_SIZE=5");
  expect_refused(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}),
                 "OMPI_COMM_WORLD_LOCAL_RANK=1: expected 0, as OMPI_COMM_WORLD_LOCAL_SIZE=1");
  expect_refused(with(kSlurm, {{"SLURM_PROCID", "9"}}),
                 "SLURM_PROCID=9: expected an integer from 0 to 8, as SLURM_STEP_NUM_TASKS=9");
  expect_refused(with(kSlurm, {{"SLURM_NODEID", "3"}}),
                 "SLURM_NODEID=3: expected an integer from 0 to 2, as SLURM_STEP_TASKS_PER_NODE=4(x2),1");
  expect_refused(with(kSlurm, {{"SLURM_LOCALID", "1"}}), "SLURM_LOCALID=1: expected 0, as SLURM_STEP_TASKS_PER_NODE=1");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "2"}},
                 "LOCAL_RANK=2: expected 0, as WORLD_SIZE=1");
  expect_refused({{"SLURM_STEPID", "3"},
                  {"SLURM_PROCID", "1"},
                  {"SLURM_NTASKS", "2"},
                  {"SLURM_LOCALID", "2"},
                  {"SLURM_NTASKS_PER_NODE", "4"},
                  {"SLURM_NODELIST", "a"}},
                 "SLURM_LOCALID=2: expected an integer from 0 to 1, as SLURM_NTASKS=2");
  expect_refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2"}}),
                 "SLURM_STEP_TASKS_PER_NODE=4(x2: expected tasks of each node, such as");
  expect_refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "10"}}),
                 "SLURM_STEP_TASKS_PER_NODE=10: expected an integer from 1 to 9, as SLURM_STEP");
  expect_refused(with(kSlurm, {{"SLURM_STEP_NODELIST", "node[01"}}),
                 "SLURM_STEP_NODELIST=node[01: expected a list of hosts");
}

TEST(Launch, EveryProcessOfASlurmStepFindsItsRank) {
  // Blocks of tasks over nodes, as srun assigns them.
  const std::vector<int> tasks{2, 2, 3, 1, 1, 1};
  int rank = 0;
  for (size_t node = 0; node < tasks.size(); ++node) {
    for (int local = 0; local < tasks[node]; ++local, ++rank) {
      const Launch launch = detect(with(kSlurm, {{"SLURM_PROCID", std::to_string(rank).c_str()},
                                                 {"SLURM_STEP_NUM_TASKS", "10"},
                                                 {"SLURM_LOCALID", std::to_string(local).c_str()},
                                                 {"SLURM_NODEID", std::to_string(node).c_str()},
                                                 {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3,1(x3)"}}));
      EXPECT_EQ(place_of(launch), (Place{rank, 10, local, tasks[node]}));
    }
  }
}

TEST(Slurm, ParsesTheFirstHost) {
  const std::pair<const char*, const char*> cases[] = {{"node", "node"},
                                                       {"a,b,c", "a"},
                                                       {"node[01-04,7],other", "node01"},
                                                       {"node[7,9-12]", "node7"},
                                                       {"node[007]", "node007"},
                                                       {"n-1.example,n-2.example", "n-1.example"},
                                                       {"rack[1-2]n[03-04]-ib,x", "rack1n03-ib"},
                                                       {"other,node[01-04]", "other"}};
  for (const auto& [list, host] : cases)
    EXPECT_EQ(detect(with(kSlurm, {{"SLURM_STEP_NODELIST", list}})).master_address, host) << list;
  for (const char* list : {",a", "node[", "node[01", "node[]", "node[-4]", "node[a-b]", "node[1x]", "node]", "no de"})
    expect_refused(with(kSlurm, {{"SLURM_STEP_NODELIST", list}}), std::string(list) + ": expected a list of hosts");
}

TEST(Slurm, RefusesInvalidTaskCounts) {
  for (const char* text : {",", "4,", "x", "0", "-1", "4(x2", "4(x)", "4(x0)", "4(2)", "4x2", "(x2)", "4(x2)1", "4 ,1"})
    expect_refused(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", text}}),
                   std::string(text) + ": expected tasks of each node, such as 4(x2),1");
}

}  // namespace
}  // namespace vitrine
