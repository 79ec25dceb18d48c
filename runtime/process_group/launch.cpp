// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/launch.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/mpi_launchers.h"
#include "runtime/settings.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

/// Memory and connections grow with the number of processes.
constexpr int kMostProcesses = 1 << 20;

/// A variable or a setting, and its value.
struct Given {
  Reason::Part shown;  // "RANK=1", or the setting
  std::string text;
};

/// A value that a launcher sets: its name (or names) and what was found.
struct Wanted {
  Reason::Part name = "";
  std::optional<Given> given;
};

Given variable(const char* name, const std::string& text) { return {fmt::format("{}={}", name, excerpt(text)), text}; }

std::optional<Given> get(const Environment& env, const char* name) {
  const char* text = env(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return variable(name, text);
}

std::optional<Given> get(const Environment& env, const char* name, const char* otherwise) {
  std::optional<Given> given = get(env, name);
  return given ? given : get(env, otherwise);
}

Wanted want(const Environment& env, const char* name) { return {name, get(env, name)}; }
Wanted want(const Environment& env, const char* name, const char* otherwise) {
  return {fmt::format("{} (or {})", name, otherwise), get(env, name, otherwise)};
}

std::optional<Given> get(Setting setting, std::optional<int> value) {
  if (!value) return std::nullopt;
  const std::string text = std::to_string(*value);
  return Given{given(setting, text), text};
}

Wanted want(Setting setting, std::optional<int> value) { return {setting, get(setting, value)}; }

Reason join(const std::vector<Reason::Part>& parts) {
  Reason joined;
  for (const Reason::Part& part : parts) joined += Reason({joined.empty() ? "" : ", ", part});
  return joined;
}

/// A given local rank replaces a launcher's variable.
Wanted want_local_rank(const LaunchFlags& flags, const Environment& env, const char* name) {
  return flags.local_rank ? want(settings::kLaunchLocalRank, flags.local_rank) : want(env, name);
}

/// Returns the values of a set in the given order. throws ConfigError if one is missing.
std::vector<Given> complete(const char* whose, const char* remedy, std::vector<Wanted> set) {
  std::vector<Given> found;
  std::vector<Reason::Part> present, missing;
  for (Wanted& wanted : set) {
    if (wanted.given) {
      present.push_back(wanted.given->shown);
      found.push_back(*std::move(wanted.given));
    } else {
      missing.push_back(std::move(wanted.name));
    }
  }
  if (!missing.empty()) {
    throw ConfigError(fmt::format("launch: {} incomplete: ", whose) + join(present) + " set, but not " + join(missing) +
                      fmt::format("; {}", remedy));
  }
  return found;
}

[[noreturn]] void reject(const Given& given, const Reason& expected) {
  throw ConfigError(
      Reason({"launch: ", given.shown, ": expected "}) + expected + "; correct it" +
      (given.shown.kind != Reason::Part::Kind::text ? "" : ", or unset it if it is left over from something else"));
}

/// `because` says where the largest value comes from.
int read_number(const Given& given, int least, int most, const Reason& because) {
  const std::optional<int> value = parse_number<int>(given.text);
  if (!value || *value < least || *value > most) {
    const Reason range =
        least == most ? fmt::format("{}", least) : fmt::format("an integer from {} to {}", least, most);
    reject(given, because.empty() ? range : range + ", as " + because);
  }
  return *value;
}

/// The four numbers, checked for consistency.
Launch place(Launch::Launcher launcher, const Given& rank, const Given& world_size, const Given& local_rank,
             const Given& local_world_size) {
  Launch launch;
  launch.launcher = launcher;
  launch.world_size = read_number(world_size, 1, kMostProcesses, "");
  launch.rank = read_number(rank, 0, launch.world_size - 1, world_size.shown);
  launch.local_world_size = read_number(local_world_size, 1, launch.world_size, world_size.shown);
  launch.local_rank = read_number(local_rank, 0, launch.local_world_size - 1, local_world_size.shown);
  return launch;
}

void read_master(const LaunchFlags& flags, const Environment& env, Launch& launch) {
  if (flags.rendezvous) return;
  const auto address = get(env, "MASTER_ADDR"), port = get(env, "MASTER_PORT");
  // A single variable may belong to another program: a cluster's service called "master" sets MASTER_PORT to a URL.
  if (!address || !port) return;
  launch.master_address = address->text;
  launch.master_port = read_number(*port, 1, UINT16_MAX, "");
  const auto store = get(env, "TORCHELASTIC_USE_AGENT_STORE");
  launch.master_port_taken = store && store->text == "True";
}

Launch from_flags(const LaunchFlags& flags, const Environment& env) {
  const auto found =
      complete("flags are", "give both, or neither for a single process",
               {want(settings::kLaunchRank, flags.rank), want(settings::kLaunchWorldSize, flags.world_size)});
  const Given& rank = found[0];
  const Given& world_size = found[1];
  const auto local_rank = want_local_rank(flags, env, "LOCAL_RANK").given;
  Launch launch = place(Launch::Launcher::flags, rank, world_size, local_rank.value_or(rank),
                        get(env, "LOCAL_WORLD_SIZE").value_or(world_size));
  read_master(flags, env, launch);
  return launch;
}

Launch from_torchrun(const LaunchFlags& flags, const Environment& env) {
  std::vector<Wanted> set{want(env, "RANK"), want(env, "WORLD_SIZE"), want_local_rank(flags, env, "LOCAL_RANK")};
  if (set[1].given && set[1].given->text == "1") {
    if (!set[2].given) set[2].given = set[0].given;
  } else if (!flags.rendezvous) {
    set.push_back(want(env, "MASTER_ADDR"));
    set.push_back(want(env, "MASTER_PORT"));
  }
  // Old scripts set all but this one; which processes share a machine is found when they connect.
  const auto local_world_size = get(env, "LOCAL_WORLD_SIZE");
  const auto found =
      complete("torchrun's variables are",
               "set the rest as torchrun does, or unset RANK if it is left over from something else", std::move(set));
  Launch launch = place(Launch::Launcher::torchrun, found[0], found[1], found[2], local_world_size.value_or(found[1]));
  launch.one_machine = (local_world_size || launch.world_size == 1) && launch.local_world_size == launch.world_size;
  read_master(flags, env, launch);
  return launch;
}

constexpr std::array<const char*, 4> kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};

bool in_open_mpi(const Environment& env) {
  return std::any_of(kOpenMpi.begin(), kOpenMpi.end(), [&](const char* name) { return get(env, name).has_value(); });
}

Launch from_open_mpi(const LaunchFlags& flags, const Environment& env) {
  const auto found = complete("Open MPI's variables are", "start with mpirun, which sets all four, or unset them",
                              {want(env, kOpenMpi[0]), want(env, kOpenMpi[1]), want_local_rank(flags, env, kOpenMpi[2]),
                               want(env, kOpenMpi[3])});
  Launch launch = place(Launch::Launcher::open_mpi, found[0], found[1], found[2], found[3]);
  launch.one_machine = launch.local_world_size == launch.world_size;
  return launch;
}

/// prterun alone starts several processes without passing their number, so each would train alone. throws ConfigError.
void reject_prterun(const Environment& env) {
  const auto launched = get(env, "PRTE_LAUNCHED"), rank = get(env, "PMIX_RANK");
  if (!launched || !rank) return;
  throw ConfigError({"launch: ", launched->shown, " and ", rank->shown,
                     " are set, but none of Open MPI's variables: prterun does not set the number of processes; start "
                     "with mpirun, give ",
                     settings::kLaunchRank, " and ", settings::kLaunchWorldSize,
                     ", or unset PRTE_LAUNCHED for a single process"});
}

/// Each of several processes of a launcher that is not understood would train alone, and all would write the same
/// files.
///   tasks  the processes of srun, which sets the same variables for MPICH. throws ConfigError
void reject_other_launchers(const Environment& env, const std::optional<Given>& tasks) {
  for (const MpiLauncher& launcher : kMpiLaunchers) {
    const auto size = get(env, launcher.size), rank = get(env, launcher.rank);
    const bool one = (!size || size->text == "1") && (!rank || rank->text == "0");
    if (one || (tasks && size && tasks->text == size->text)) continue;
    std::vector<Reason::Part> set;
    for (const auto& variable : {size, rank}) {
      if (variable) set.push_back(variable->shown);
    }
    throw ConfigError(
        Reason("launch: ") + join(set) +
        fmt::format(" set, as by {}, whose processes would each run alone", launcher.whose) +
        Reason({"; start them with Open MPI's mpirun (with GPUs also with torchrun or srun, or give ",
                settings::kLaunchRank, " and ", settings::kLaunchWorldSize,
                fmt::format("), or unset {} and {} for a single process", launcher.size, launcher.rank)}));
  }
}

/// A run of equal numbers in Slurm's lists: 4(x2).
struct SlurmCount {
  int value = 0;
  int times = 1;
};

/// Parses a number of at least 1 that makes up the whole text.
std::optional<int> parse_positive(std::string_view text) {
  const std::optional<int> value = parse_number<int>(text);
  return value && *value >= 1 ? value : std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Parses "4(x2),1": numbers of at least 1, one per node. Returns nothing for anything else.
std::optional<std::vector<SlurmCount>> parse_slurm_counts(std::string_view text) {
  std::vector<SlurmCount> counts;
  for (const std::string_view item : split_text(text, ',')) {
    const size_t open = std::min(item.find("(x"), item.size());
    const std::string_view run = open == item.size() ? "(x1)" : item.substr(open);
    const auto value = parse_positive(item.substr(0, open)), times = parse_positive(run.substr(2, run.size() - 3));
    if (!value || !times || !run.ends_with(')')) return std::nullopt;
    counts.push_back({*value, *times});
  }
  return counts;
}

/// Returns the first host of a list: node01 for "node[01-04,7],other". Returns nothing for anything else.
std::optional<std::string> first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const char c = list.front();
    list.remove_prefix(1);
    if (c == ']' || c == ' ') return std::nullopt;
    if (c != '[') {
      host += c;
      continue;
    }
    // Only the first number in the brackets counts, with its leading zeros.
    const auto* digits_end = std::find_if_not(list.begin(), list.end(), is_digit);
    const auto digits = static_cast<size_t>(digits_end - list.begin());
    const size_t close = list.find(']');
    if (digits == 0 || close == std::string_view::npos ||
        std::string_view("-,]").find(list[digits]) == std::string_view::npos)
      return std::nullopt;
    host += list.substr(0, digits);
    list.remove_prefix(close + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<Given> slurm_job(const Environment& env) { return get(env, "SLURM_JOB_ID", "SLURM_JOBID"); }

constexpr std::array<const char*, 2> kSlurmTasks{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};

/// Batch scripts have no step number; interactive shells have a reserved one, 2^32 - 16 or above.
bool in_slurm_step(const Environment& env) {
  const auto step = get(env, "SLURM_STEP_ID", "SLURM_STEPID");
  return step && parse_number<uint64_t>(step->text).value_or(0) < 0xfffffff0;
}

constexpr const char *kTaskCounts = "SLURM_STEP_TASKS_PER_NODE", *kTaskLimit = "SLURM_NTASKS_PER_NODE";

/// Number of tasks on this machine, from a list such as "4(x2),1".
Given slurm_local_tasks(const Given& per_node, bool is_limit, const Environment& env) {
  const auto counts = parse_slurm_counts(per_node.text);
  if (!counts) reject(per_node, "tasks of each node, such as 4(x2),1");
  int64_t node = 0, nodes = 0;
  const bool equal = std::all_of(counts->begin(), counts->end(),
                                 [&](const SlurmCount& c) { return c.value == counts->front().value; });
  if (!equal) {
    for (const SlurmCount& count : *counts) nodes += count.times;
    const auto id = complete("Slurm's variables are", "start with srun, which sets it",
                             {{per_node.shown, per_node}, want(env, "SLURM_NODEID")})[1];
    node = read_number(id, 0, static_cast<int>(std::min<int64_t>(nodes - 1, INT_MAX)), per_node.shown);
  }
  auto count = counts->begin();
  for (; node >= count->times; ++count) node -= count->times;
  return variable(is_limit ? kTaskLimit : kTaskCounts, std::to_string(count->value));
}

Launch from_slurm(const LaunchFlags& flags, const Environment& env) {
  const auto found =
      complete("Slurm's variables are",
               "start with srun, which sets them, or unset SLURM_STEP_ID and SLURM_STEPID for a single process",
               {want(env, "SLURM_PROCID"), want(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
                want_local_rank(flags, env, "SLURM_LOCALID"), want(env, kTaskCounts, kTaskLimit),
                want(env, "SLURM_STEP_ID", "SLURM_STEPID")});
  const Given& per_node = found[3];
  // --ntasks-per-node is a limit: with fewer tasks, all are on this machine.
  const bool limit = !get(env, kTaskCounts);
  Given local_world_size = slurm_local_tasks(per_node, limit, env);
  if (limit && read_number(found[1], 1, INT_MAX, "") < read_number(local_world_size, 1, INT_MAX, ""))
    local_world_size = found[1];
  Launch launch = place(Launch::Launcher::slurm, found[0], found[1], found[2], local_world_size);
  // A limit per node does not give the number of nodes.
  launch.one_machine = !limit && launch.local_world_size == launch.world_size;
  read_master(flags, env, launch);
  if (flags.rendezvous || !launch.master_address.empty()) return launch;
  auto hosts = get(env, "SLURM_STEP_NODELIST", "SLURM_NODELIST");
  if (!hosts) hosts = get(env, "SLURM_JOB_NODELIST");
  if (!hosts) return launch;
  const auto first = first_slurm_host(hosts->text);
  if (!first) reject(*hosts, "a list of hosts, such as node[01-04,7],other");
  launch.master_address = *first;
  return launch;
}

/// Explains why no launcher was detected.
std::string why_single(const Environment& env) {
  std::vector<std::string> why, strays;
  for (const char* name : {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (const auto stray = get(env, name)) strays.push_back(stray->shown.text);
  }
  if (!strays.empty()) why.push_back(fmt::format("{} without RANK does not mean torchrun", fmt::join(strays, ", ")));
  if (const auto job = slurm_job(env))
    why.push_back(fmt::format("{} but no step of srun; use srun to start several processes", job->shown.text));
  return why.empty() ? "no launcher's variables are set" : fmt::format("{}", fmt::join(why, "; "));
}

Launch from_nothing(const LaunchFlags& flags, const Environment& env) {
  Launch launch;
  if (const auto local_rank = get(settings::kLaunchLocalRank, flags.local_rank)) {
    read_number(*local_rank, 0, 0,
                {"this is a single process: neither ", settings::kLaunchRank, " and ", settings::kLaunchWorldSize,
                 " nor a launcher's variables are set"});
  }
  launch.note = fmt::format("single process: {}", why_single(env));
  return launch;
}

/// Line for the log; names the launchers that were passed over.
Reason describe(const Launch& launch, const LaunchFlags& flags, const Environment& env) {
  using Launcher = Launch::Launcher;
  Reason line = fmt::format("{}: rank {} of {}, local rank {} of {}", launcher_name(launch.launcher), launch.rank,
                            launch.world_size, launch.local_rank, launch.local_world_size);
  if (flags.local_rank) line += {" (", settings::kLaunchLocalRank, ")"};
  const bool colons = launch.master_address.find(':') != std::string::npos;
  if (!launch.master_address.empty())
    line += fmt::format(", master {}{}{}", colons ? "[" : "", launch.master_address, colons ? "]" : "");
  if (launch.master_port > 0) line += fmt::format(":{}", launch.master_port);
  std::vector<const char*> others;
  const auto passed_over = [&](Launcher launcher, bool present) {
    if (present && launch.launcher < launcher) others.push_back(launcher_name(launcher));
  };
  passed_over(Launcher::torchrun, get(env, "RANK").has_value());
  passed_over(Launcher::open_mpi, in_open_mpi(env));
  passed_over(Launcher::slurm, in_slurm_step(env));
  if (!others.empty()) line += fmt::format("; variables of {} are set too and not used", fmt::join(others, " and "));
  return line;
}

std::string run_id_of(Launch::Launcher launcher, const Environment& env) {
  if (const auto given = get(env, "VITRINE_RUN_ID")) return given->text;
  const auto launchers = launcher == Launch::Launcher::torchrun ? get(env, "TORCHELASTIC_RUN_ID") : std::nullopt;
  if (launchers) return launchers->text;
  const auto job = launcher == Launch::Launcher::slurm ? slurm_job(env) : std::nullopt;
  const auto step = get(env, "SLURM_STEP_ID", "SLURM_STEPID");
  return job && step ? fmt::format("{}.{}", job->text, step->text) : std::string();
}

}  // namespace

const char* launcher_name(Launch::Launcher launcher) {
  static constexpr const char* kNames[] = {"single", "flags", "torchrun", "Open MPI", "Slurm"};
  return kNames[static_cast<int>(launcher)];
}

Launch detect_launch(const LaunchFlags& flags, const Environment& env) {
  Launch launch;
  if (flags.rank || flags.world_size) {
    launch = from_flags(flags, env);
  } else if (get(env, "RANK")) {
    launch = from_torchrun(flags, env);
  } else if (in_open_mpi(env)) {
    launch = from_open_mpi(flags, env);
  } else {
    reject_prterun(env);
    reject_other_launchers(env, in_slurm_step(env) ? get(env, kSlurmTasks[0], kSlurmTasks[1]) : std::nullopt);
    if (!in_slurm_step(env)) return from_nothing(flags, env);
    launch = from_slurm(flags, env);
  }
  launch.run_id = run_id_of(launch.launcher, env);
  launch.note = describe(launch, flags, env);
  return launch;
}

}  // namespace vitrine
