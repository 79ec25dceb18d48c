// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/conv2d.h"
#include "nn/checkpoint.h"
#include "nn/json_file.h"
#include "nn/parallel/plan/movement_plan.h"
#include "nn/tuned_plans_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/checkpoint/checkpoints.h"
#include "tools/program/checkpoint/resume.h"
#include "tools/program/choose/choose.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/flags/options.h"
#include "tools/program/process/attempts.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/process/processes.h"
#include "tools/program/record/findings.h"
#include "tools/program/record/record.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/measure.h"
#include "tools/program/run/run.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/run/run_log.h"
#include "tools/program/run/unread.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/tables.h"
#include "tools/program/text/terminal.h"
#include "tools/program/train/training.h"

namespace vitrine::tools {
namespace {

/// The plans of the file that --autotune names; nothing if there is no file yet.
std::optional<TunedPlans> read_file(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  return with_prefix<DataError>("--autotune ",
                                [&] { return parse_tuned_plans(path, read_regular_file(path, kLargestJson)); });
}

/// The configuration of the engine. On rank 0 its known plans come from the checkpoint that --resume names or, without
/// them, from the file.
/// throws  DataError: the file is not one of --autotune
Autotune resolve_autotune(const Options& options, const Processes& processes) {
  Autotune autotune;
  autotune.enabled = options.autotune.has_value();
  if (!autotune.enabled || !processes.leads()) return autotune;
  std::optional<TunedPlans> known = stored_plans(options);
  if (!known) known = read_file(*options.autotune);
  if (known) autotune.known = std::make_shared<const TunedPlans>(std::move(*known));
  return autotune;
}

/// Warns about known plans that are not in use, also about plans of the checkpoint, prints what was timed on stderr,
/// and writes the file if its plans are not those in use. Only rank 0 does. throws  DataError: the file cannot be
/// written
void conclude_autotune(const Options& options, const Engine& engine, const std::optional<Resumed>& resumed,
                       const Processes& processes) {
  const std::shared_ptr<const TunedPlans>& plans = engine.facts().tuned_plans;
  if (!plans || !processes.leads()) return;
  std::vector<std::string> warnings = engine.facts().autotune.warnings;
  if (resumed && resumed->state.plans && resumed->state.plans != *plans) {
    warnings.push_back(
        resumed->folder +
        " has other plans than this run uses, so its results may differ from an uninterrupted run by rounding");
  }
  for (std::string& warning : warnings) warning.insert(0, "--autotune: ");
  print_warnings(options, warnings);
  fmt::print(stderr, "vitrine: --autotune: {}\n", describe_autotune(engine));
  const std::string& path = *options.autotune;
  if (path.empty() || read_file(path) == *plans) return;
  write_output_file("--autotune", path, [&](std::ostream& file) { file << tuned_plans_json(*plans, 1) << '\n'; });
}

/// Saves the averages of the weights beside the weights, if there are any. Every process calls it.
void save_averages(const Options& options, const Job& job, Engine& engine, const Processes& processes) {
  if (!options.recipe.ema || options.save.empty()) return;
  const Engine::AverageScope averages(engine);
  Options beside = options;
  beside.save = averages_path(options.save);
  save_weights(beside, job, engine, processes);
}

/// The exit status of a run that was asked to end: 143 if any process got SIGTERM.
int agreed_interrupt_status(const Processes& processes) {
  if (!processes.process_group()) return interrupt_status();
  return processes.process_group()->sum("the signals", {terminated() ? 1.0 : 0.0})[0] > 0.0 ? kExitTerminated
                                                                                            : kExitInterrupted;
}

TrainingRecord make_record(const Chosen& chosen, const Job& job, const std::vector<DeviceId>& devices,
                           const Processes& processes, Run& run, const Training& training,
                           const Checkpoints& checkpoints, const std::optional<Resumed>& resumed) {
  const Options& options = chosen.options;
  TrainingRecord record;
  record.title =
      fmt::format("{} on {}, {}", job.model.name, counted(run.devices->world_size(), "device"), options.mode_name());
  record.command_line = command_line(options);
  record.facts = run_facts(options, job, run);
  for (const std::string& note : chosen.notes) record.facts.emplace_back("chosen", note);
  if (resumed)
    record.facts.emplace_back("continues from", fmt::format("{}, step {}", resumed->folder, resumed->state.step));
  if (const auto& epochs = training.record().epochs; !epochs.empty() && !epochs.back().whole()) {
    const EpochRecord& last = epochs.back();
    record.facts.emplace_back("interrupted",
                              fmt::format("epoch {}, after {} of {} steps", last.epoch, last.steps, last.steps_wanted));
  }
  if (!training.record().failure.empty()) record.facts.emplace_back("ended by", training.record().failure);
  record.config = config_json({options, job, devices, run.devices->world_size()});
  record.notes = chosen.notes;
  record.processes = processes.count();
  record.interrupted = training.stopped() && training.record().failure.empty();
  record.skipped = gather_skipped(job, processes.process_group().get());
  if (!record.skipped.empty())
    record.facts.emplace_back("skipped", counted(static_cast<int64_t>(record.skipped.size()), "damaged image"));
  record.checkpoints = checkpoints.record();
  if (resumed) record.resumed_from = resumed->folder;
  record.communicator = run.engine->facts().communicator;
  record.cuda_graphs = describe_graphs(options, run);
  record.graph_counts = run.engine->graph_counts();
  if (run.engine->facts().tuned_plans) record.plans = tuned_plans_json(*run.engine->facts().tuned_plans);
  record.convolutions = conv2d_choices((*run.devices)[0].compute());
  RunRecord& of = record.run = training.record();
  add_sample_bytes(of, job.model, run.engine->config());
  if (!options.confusion) of.confusion.reset();
  std::map<std::string, int64_t> held{{"dataset", dataset_bytes(job.data)}, {"weights", weight_copies(options, job)}};
  if (record.checkpoints) {
    for (const auto& [flat, bytes] : record.checkpoints->staging) held["checkpoint"] += bytes;
  }
  of.devices = measure_devices(run, held);
  of.exact_price = exact_price(options, job, run);
  note_cores(of, *run.devices);
  training.recorder().add_to(of.devices);
  if (!options.report.empty()) add_recorded_step(of, run, training.recorder().kept_spans(), training.recorded());
  of.devices = gather_devices(processes, std::move(of.devices));
  if (!options.report.empty() && processes.count() == 1) {
    const auto planned = DeviceGroup::planned(device_group_options(options, devices));
    record.stage_below =
        plan_stage_below(options, job, run.engine->config(), run.engine->facts().batch, PlannedDevices(*planned));
    if (record.stage_below)
      of.planned_moved_bytes = most_moved(plan_movement(job.model, *planned, run.engine->config(),
                                                        train_workload(options, job, options.steps, options.evaluate)));
  }
  conclude(record);
  return record;
}

struct Trained {
  std::optional<TrainingRecord> record;  // nothing if it could not be made: the attempts have the error
  std::string files;                     // sentences that name the weights that were saved
  int status = 0;                        // 130 or 143 if training was interrupted
};

/// Trains as the options say, from the checkpoint that --resume names if there is one: prints the run and its epochs,
/// writes --log, --tensorboard, checkpoints, --save, --trace and --memory-history. The record says whether training
/// diverged. Errors after the last step go to `attempts`.
///   devices  of this process      group  of all processes      directory  open_checkpoint_directory()
/// throws  ConfigError, DeviceError, OutOfMemory, DataError, CommError
Trained train(const Chosen& chosen, const Job& job, const std::vector<DeviceId>& devices,
              std::unique_ptr<DeviceGroup> group, std::unique_ptr<CheckpointDirectory> directory,
              const Processes& processes, Attempts& attempts) {
  const Options& options = chosen.options;
  const Scheme scheme = resolve_scheme(options, devices, group->world_size());
  if (processes.process_group()) agree_on_run(options, job, devices, *processes.process_group(), group->world_size());
  EngineConfig config = engine_config(options, job, scheme, resolve_precision(options));
  config.autotune = resolve_autotune(options, processes);
  Run run = open_run(std::move(group), job, config, train_workload(options, job, options.steps, options.evaluate),
                     initial_weights(options), RecordedSteps::all(options),
                     !options.steps || *options.steps * options.batch_size >= job.data.train.size());
  print_warnings(options, idle_device_warnings(run.engine->facts().batch));
  print_warnings(options, workspace_warnings(run.engine->facts().plans.front()));
  const std::optional<Resumed> resumed = resume_run(options, job, run, processes);
  conclude_autotune(options, *run.engine, resumed, processes);
  if (!options.json) fmt::print("{}\n", Style::of(STDOUT_FILENO).prose(describe_run(options, job, run)));
  std::fflush(stdout);

  RunLog::Target target{.tensorboard = options.tensorboard, .file = options.log, .facts = run_facts(options, job, run)};
  target.config = config_json({options, job, devices, run.devices->world_size()});
  for (int d = 0; d < run.devices->size(); ++d) target.devices.push_back((*run.devices)[d].name());
  target.processes = &processes;
  if (!processes.leads()) target.tensorboard = target.file = "";
  target.steps_before = run.engine->steps_issued();
  target.run_id = resumed ? resumed->state.run_id : new_run_id();
  RunLog log(target);
  Checkpoints checkpoints(options, processes, run, job, target.run_id, std::move(directory),
                          resumed ? resumed->state.best : std::nullopt);
  StateHashes hashes(options.hashes, *run.engine, processes.leads());
  Training training(options, job, run, target.run_id, log, checkpoints, hashes, resumed);
  if (processes.leads() && training.is_complete()) fmt::print(stderr, "vitrine: {}\n", training.describe_completion());
  Trained trained;
  const auto write = [&](const char* what, const std::string& path, const auto& action) {
    const bool written = attempts.run(action);
    if (written && !path.empty()) trained.files += fmt::format("The {} in {}\n", what, path);
    return written;
  };
  bool saved = false;
  const auto save = [&] {
    if (std::exchange(saved, true)) return;
    if (!write(training.record().diverged.empty() ? "weights are" : "last finite weights are", options.save,
               [&] { save_weights(options, job, *run.engine, processes); }))
      return;
    write("average of the weights is", options.recipe.ema && !options.save.empty() ? averages_path(options.save) : "",
          [&] { save_averages(options, job, *run.engine, processes); });
  };
  try {
    training.run(save);
  } catch (...) {
    if (!saved) rescue_weights(options, job, *run.engine, processes);
    log.flush();
    attempts.run([&] { hashes.close(); });
    throw;
  }
  trained.status = !training.record().failure.empty() ? kExitFailure
                   : training.stopped()               ? agreed_interrupt_status(processes)
                                                      : kExitOk;
  // A failure here does not prevent the rest; the checkpoint and the weights come first.
  attempts.run([&] { checkpoints.finish(); });
  save();
  write("log is", options.log, [&] { log.close_file(); });
  if (attempts.run([&] { log.close_tensorboard(); }) && !options.tensorboard.empty())
    trained.files += fmt::format("TensorBoard reads {}\n", options.tensorboard);
  attempts.run([&] {
    training.end();
    run.engine->finish();
    if (options.verify_replicas > 0) run.engine->parameters().verify();
  });
  std::string state_hash;
  if (options.exact || !options.hashes.empty()) attempts.run([&] { state_hash = hashes.take().hash; });
  if (processes.leads() && (options.exact || !options.hashes.empty())) {
    trained.files += fmt::format("The hash of the state is {}\n", state_hash);
    write("hashes of all steps are", options.hashes, [&] { hashes.close(); });
  }
  const std::string trace = path_of_rank(options.trace, processes),
                    memory_history = path_of_rank(options.memory_history, processes);
  if (!trace.empty())
    write("trace is", trace, [&] { write_trace_file(trace, *run.devices, training.recorder().kept_spans()); });
  if (!memory_history.empty()) {
    write("memory history is", memory_history,
          [&] { write_memory_history(memory_history, *run.devices, training.recorded()); });
  }
  attempts.run([&] {
    trained.record = make_record(chosen, job, devices, processes, run, training, checkpoints, resumed);
    trained.record->run.state_hash = state_hash;
  });
  return trained;
}

}  // namespace

int run_train(const Options& asked, const Processes& processes) {
  // Usage errors before any work.
  check_train_schedule(asked);
  const std::vector<DeviceId> devices = resolve_devices(asked, cuda_device_count());
  check_autotune(asked, devices);
  if (processes.leads()) {
    check_writable("--save", asked.save);
    if (asked.recipe.ema && !asked.save.empty()) check_writable("--save", averages_path(asked.save));
    check_writable("--report", asked.report);
    check_writable("--log", asked.log);
    check_writable("--hashes", asked.hashes);
    check_writable("--autotune", asked.autotune.value_or(""));
  }
  check_writable("--trace", path_of_rank(asked.trace, processes));
  check_writable("--memory-history", path_of_rank(asked.memory_history, processes));
  std::unique_ptr<CheckpointDirectory> checkpoint_directory = open_checkpoint_directory(asked, processes);
  DeviceGroupOptions group_options = device_group_options(asked, devices, processes.process_group());
  const Job job = open_job(asked);
  group_options.host_bytes = host_copies(asked, job);
  auto group = std::make_unique<DeviceGroup>(group_options);
  resolve_scheme(asked, devices, group->world_size());
  print_device_warnings(asked, *group);
  if (!asked.choices.batch_size) print_warnings(asked, batch_warnings(asked, job));
  const Chosen mode = choose_mode(asked, job, *group, &group);
  Chosen chosen = choose_by_plan(mode.options, job, *group);
  chosen.notes.insert(chosen.notes.begin(), mode.notes.begin(), mode.notes.end());
  if (asked.choices.split && asked.balance == "time") balance_by_time(chosen, job, group);
  const Style style = Style::of(asked.json ? STDERR_FILENO : STDOUT_FILENO);
  for (const std::string& note : chosen.notes) fmt::print(asked.json ? stderr : stdout, "{}\n", style.prose(note));
  const Options& options = chosen.options;
  Attempts attempts;
  Trained trained = train(chosen, job, devices, std::move(group), std::move(checkpoint_directory), processes, attempts);
  if (trained.record) {
    attempts.run([&] {
      const TrainingRecord& record = *trained.record;
      if (!options.report.empty() && processes.leads() &&
          attempts.run([&] { html::write_page(options.report, html::page_of(record, run_json(record))); })) {
        trained.files += fmt::format("The report is in {}\n", options.report);
      }
      if (options.json) {
        print_json(run_json(record));
        if (!trained.files.empty() && !options.quiet) fmt::print(stderr, "{}", style.prose(trained.files));
        return;
      }
      if (record.run.confusion) fmt::print("{}\n", record.run.confusion->report(job.data.test.class_names, style));
      fmt::print("{}{}{}", run_report(record, options.details, style), trained.files.empty() ? "" : "\n",
                 style.prose(trained.files));
    });
  }
  if (!trained.record) attempts.rethrow();
  if (const std::string& failure = trained.record->run.failure; !failure.empty() && processes.leads())
    fmt::print(stderr, "{}\n", Style::of(STDERR_FILENO).prose("vitrine: " + failure));
  if (const std::string& diverged = trained.record->run.diverged; !diverged.empty()) {
    if (processes.leads()) {
      fmt::print(stderr, "vitrine: {} (--lr, {}--precision); --allow-non-finite continues with NaN\n", diverged,
                 options.update_in_backward ? "" : "--clip-norm, ");
    }
    trained.status = kExitFailure;
  }
  attempts.rethrow();
  return trained.status;
}

}  // namespace vitrine::tools
