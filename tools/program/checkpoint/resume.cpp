// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/resume.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "nn/checkpoint.h"
#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/run/checkpoint_files.h"
#include "tools/program/text/output_file.h"
#include "vitrine_version.h"

namespace vitrine::tools {
namespace {

namespace fs = std::filesystem;

bool is_whole(const NamedCheckpoint& checkpoint) {
  try {
    read_checkpoint(checkpoint.path);
  } catch (const DataError&) {
    return false;
  }
  return true;
}

/// Refuses a --checkpoint-dir with checkpoints of another run, among which this run would save and remove, and one with
/// checkpoints that are newer than the chosen one: the next --resume would choose these. Those that are not whole will
/// be replaced.
void check_directory(const CheckpointOptions& o, const WholeCheckpoint& chosen, const RunState& state) {
  if (o.directory.empty()) return;
  const std::vector<NamedCheckpoint> found = list_checkpoints(o.directory);
  for (auto other = found.rbegin(); other != found.rend(); ++other) {
    const std::optional<std::string> run_id = run_id_of(other->path);
    if (!run_id) continue;
    if (*run_id != state.run_id) {
      throw DataError(fmt::format(
          "--checkpoint-dir {}: {} belongs to run {}, but --resume continues run {} from {}; choose another folder, or "
          "remove what belongs to the other run",
          o.directory, checkpoint_name(other->step), run_id->empty() ? "(none)" : *run_id, state.run_id, chosen.path));
    }
    if (other->step <= state.step || !is_whole(*other)) continue;
    throw DataError(
        fmt::format("--resume {}: {} has a newer checkpoint, {}; continue from that one with --resume auto, remove it "
                    "to continue from the older one, or choose another --checkpoint-dir",
                    chosen.path, o.directory, checkpoint_name(other->step)));
  }
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

/// The checkpoint on rank 0, as "FOLDER\nJSON"; empty for a start from scratch.
std::string choose(const Options& options, const std::vector<RunSetting>& settings, const Run& run) {
  const CheckpointOptions& o = options.checkpoints;
  const std::string path = without_slash(o.resumes_automatically() ? o.directory : o.resume);
  const std::optional<WholeCheckpoint> found = with_prefix<DataError>("--resume ", [&] {
    return o.resumes_automatically() ? find_checkpoint(path) : std::optional(require_checkpoint(path));
  });
  if (!found) return {};
  const RunState state =
      with_prefix<DataError>("--resume ", [&] { return parse_run_state(found->path, found->state_json); });
  check_directory(o, *found, state);
  compare_settings(state.settings, settings, found->path,
                   state.parameters == parameters_hash(run.engine->parameters().layout()));
  return fmt::format("{}\n{}", found->path, found->state_json);
}

/// Adapts the state to another learning rate or schedule.
void adapt(const Options& options, const std::vector<SettingChange>& changes, RunState& state) {
  const double lr = resolve_optimizer(options).learning_rate();
  if (has_changed(changes, "lr-schedule")) {
    state.schedule = {};
    state.schedule.plateau_lr = lr;
  } else if (has_changed(changes, "lr")) {
    state.schedule.plateau_lr = lr;
  }
}

void report(const Resumed& resumed, const std::vector<SettingChange>& changes, bool saves) {
  const RunState& state = resumed.state;
  fmt::print(stderr, "vitrine: continuing from {}: step {}, epoch {}, batch {} of {}\n", resumed.folder, state.step,
             state.epoch + 1, state.batch, state.batches_per_epoch);
  if (state.version != VITRINE_VERSION)
    fmt::print(stderr, "vitrine: version {} wrote the checkpoint; this is {}\n", excerpt(state.version),
               VITRINE_VERSION);
  for (const std::string& change : describe_changes(changes)) fmt::print(stderr, "vitrine: {}\n", excerpt(change, 400));
  if (!saves) fmt::print(stderr, "vitrine: this run saves no checkpoints; to go on saving, add --checkpoint-dir DIR\n");
}

/// Loads the state. With several processes the tensors are rank 0's.
void load(const Options& options, const Resumed& resumed, Run& run, bool reads) {
  Engine& engine = *run.engine;
  TrainingState state = engine.checkpointer().make_state();
  state.take_scalars(resumed.state);
  if (reads) {
    with_prefix<DataError>("--resume ", [&] {
      read_checkpoint_files(resumed.folder, engine.parameters().layout(), engine.parameters().buffer_layout(), state);
    });
  }
  engine.checkpointer().load_state(state);
  // The configured values apply, and a schedule sets its own before each step.
  const OptimizerConfig optimizer = resolve_optimizer(options);
  engine.set_learning_rate(optimizer.learning_rate());
  if (optimizer.kind == OptimizerConfig::Kind::sgd && optimizer.sgd.momentum != 0.0)
    engine.set_momentum(optimizer.sgd.momentum);
}

}  // namespace

std::optional<TunedPlans> stored_plans(const Options& options) {
  const CheckpointOptions& o = options.checkpoints;
  if (o.resume.empty()) return std::nullopt;
  const std::string path = without_slash(o.resumes_automatically() ? o.directory : o.resume);
  try {
    const auto silent = [](const std::string&) {};  // resume_run() reports what is wrong with the checkpoints
    const std::optional<WholeCheckpoint> found =
        is_checkpoint(path) ? WholeCheckpoint{path, read_checkpoint(path)} : newest_whole_checkpoint(path, silent);
    return found ? parse_run_state(found->path, found->state_json).plans : std::nullopt;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

std::optional<Resumed> resume_run(const Options& options, const Job& job, Run& run, const Processes& processes) {
  if (options.checkpoints.resume.empty()) return std::nullopt;
  const std::vector<RunSetting> settings = run_settings(options, job, run);
  std::string chosen = processes.leads() ? choose(options, settings, run) : std::string();
  if (processes.process_group())
    chosen = processes.process_group()->broadcast("the checkpoint to continue from", chosen);
  if (chosen.empty()) return std::nullopt;
  const size_t end = chosen.find('\n');
  Resumed resumed{chosen.substr(0, end), parse_run_state(chosen.substr(0, end), chosen.substr(end + 1))};
  const bool same_parameters = resumed.state.parameters == parameters_hash(run.engine->parameters().layout());
  const std::vector<SettingChange> changes =
      compare_settings(resumed.state.settings, settings, resumed.folder, same_parameters);
  adapt(options, changes, resumed.state);
  load(options, resumed, run, processes.leads());
  if (processes.process_group()) run.engine->parameters().verify();
  if (processes.leads()) report(resumed, changes, !options.checkpoints.directory.empty());
  return resumed;
}

}  // namespace vitrine::tools
