// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process/processes.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/gpu_info.h"
#include "runtime/process_group/launch.h"
#include "tools/program/flags/advice.h"
#include "tools/program/process/interrupt.h"

namespace vitrine::tools {

namespace {

// Time that this process has to exit by itself after the process group has failed.
constexpr int64_t kExitAfterMs = 2000;
// Time that rank 0 has to report why all processes end.
constexpr auto kReportTime = std::chrono::milliseconds(500);
// Time in which a process that was asked to stop may finish joining, to tell the others.
constexpr auto kJoinTime = std::chrono::seconds(1);

bool on_cpus(const Options& options) {
  return resolve_devices(options, cuda_device_count())[0].backend == Backend::cpu;
}

/// The rendezvous of the processes; empty: MPI.
std::string rendezvous_place(const Options& options, const Launch& launch) {
  using Launcher = Launch::Launcher;
  const bool by_mpi = launch.launcher == Launcher::open_mpi;
  // Under Slurm, MPI needs srun's PMIx; GPUs do not need MPI.
  const bool may_use_mpi = by_mpi || launch.launcher == Launcher::slurm;
  if (on_cpus(options) && (!may_use_mpi || !options.rendezvous.empty())) {
    throw ConfigError(
        fmt::format("CPU devices of several processes reduce over MPI, but these {}; start them with mpirun -np {} "
                    "vitrine ..., without --rendezvous",
                    options.rendezvous.empty() ? fmt::format("were started by {}", launcher_name(launch.launcher))
                                               : "use --rendezvous",
                    launch.world_size));
  }
  if (!options.rendezvous.empty()) return options.rendezvous;
  if (by_mpi || on_cpus(options)) return {};
  if (launch.master_address.empty() || launch.master_port == 0) {
    throw ConfigError(launch.note +
                      ": the rendezvous of the processes is unknown; add --rendezvous tcp://HOST:PORT of the first "
                      "process's machine, or --rendezvous file:PATH");
  }
  // torchrun's agent listens on this port itself, so the next one is used.
  return fmt::format("tcp://{}:{}", launch.master_address, launch.master_port + (launch.master_port_taken ? 1 : 0));
}

void silence_stdout() {
  std::fflush(stdout);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) throw DataError("cannot open /dev/null, which takes the output of processes other than rank 0");
  dup2(nowhere, STDOUT_FILENO);
  close(nowhere);
}

}  // namespace

Processes::Processes(Options& options) {
  const Environment environment = [](const char* name) { return std::getenv(name); };
  const Launch launch =
      detect_launch({options.rank, options.world_size, options.local_rank, !options.rendezvous.empty()}, environment);
  if (launch.launcher != Launch::Launcher::single || options.local_rank) options.local_rank = launch.local_rank;
  if (launch.world_size == 1) {
    if (!options.rendezvous.empty()) {
      throw ConfigError(Reason(fmt::format("--rendezvous {}: there is only one process (", options.rendezvous)) +
                        launch.note + "); start several with mpirun or torchrun, or give --rank and --world-size");
    }
    return;
  }
  // Checked before waiting for the others.
  if (!on_cpus(options) && cuda_device_count() == 0)
    throw UnsupportedError(fmt::format("cuda: {}", query_gpus(false).problem));
  ProcessGroupOptions process_group;
  process_group.rank = launch.rank;
  process_group.size = launch.world_size;
  process_group.rendezvous = rendezvous_place(options, launch);
  process_group.secret = find_secret(environment);
  process_group.run_id = options.run_id.empty() ? launch.run_id : options.run_id;
  process_group.one_machine = launch.one_machine;
  process_group.timeout_ms = static_cast<int64_t>(options.timeout_seconds * 1000);
  process_group.exit_after_ms = kExitAfterMs;
  process_group.on_failure_found = [](const Reason& reason) {
    fmt::print(stderr, "vitrine: {}\n", in_program_words(reason));
  };
  process_group.on_slow = [](const Reason& reason) {
    fmt::print(stderr, "vitrine: note: {}\n", in_program_words(reason));
  };
  // A signal may arrive while this process joins: what ends then are all that have joined.
  const auto joined = std::make_shared<std::promise<std::weak_ptr<ProcessGroup>>>();
  report_early_interrupt([joined](const std::string& name) {
    std::future<std::weak_ptr<ProcessGroup>> group = joined->get_future();
    if (group.wait_for(kJoinTime) != std::future_status::ready) return;
    if (const auto alive = group.get().lock())
      alive->fail(fmt::format("it was asked to stop by {} before its first step", name));
  });
  process_group_ = std::make_shared<ProcessGroup>(process_group);
  joined->set_value(process_group_);
  options.quiet = !leads();
  if (leads()) {
    fmt::print(stderr, "vitrine: {}; {}\n", in_program_words(launch.note), process_group_->description());
  } else {
    silence_stdout();
    keep_interrupts_quiet();
  }
  process_group_->on_failure(
      [](const Reason&) { keep_interrupts_quiet(); });  // the launcher ends the survivors with a signal
}

void Processes::fail(const Reason& reason, bool usage) {
  if (!process_group_ || process_group_->closed()) {
    if (leads()) {
      fmt::print(stderr, "vitrine: {}\n", in_program_words(reason));
    } else {
      std::this_thread::sleep_for(kReportTime);  // mpirun ends the job with its first process
    }
    return;
  }
  process_group_->fail(reason);
  if (process_group_->failure().empty())
    fmt::print(stderr, "vitrine: rank {}: {}; the other processes could not be notified\n", process_group_->rank(),
               in_program_words(reason));
  std::fflush(nullptr);
  _exit(usage ? kExitUsage : kExitFailure);
}

void Processes::close() {
  if (process_group_) process_group_->close();
}

std::string path_of_rank(const std::string& path, const Processes& processes) {
  if (path.empty() || processes.leads()) return path;
  const size_t dot = path.rfind('.');
  const bool has_ending = dot != std::string::npos && path.find('/', dot) == std::string::npos;
  const std::string rank = fmt::format(".rank{}", processes.process_group()->rank());
  return has_ending ? path.substr(0, dot) + rank + path.substr(dot) : path + rank;
}

void require_alone(const Processes& processes, const char* command) {
  if (processes.count() == 1) return;
  throw ConfigError(
      fmt::format("{}: it runs in one process, but {} were started; start one, with all devices in --devices", command,
                  processes.count()));
}

}  // namespace vitrine::tools
