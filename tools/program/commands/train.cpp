// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/error.h"
#include "tools/program/commands/commands.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/json_report.h"
#include "tools/program/render/terminal_report.h"
#include "tools/program/run/attempts.h"
#include "tools/program/run/choose.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/output_file.h"
#include "tools/program/train/train_job.h"
#include "tools/program/train/training.h"

namespace vitrine::tools {

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
  Trained trained = train_job(options, job, {devices, std::move(group), std::move(checkpoint_directory), chosen.notes},
                              processes, attempts);
  if (trained.record) {
    attempts.run([&] {
      const Record& record = *trained.record;
      if (!options.report.empty() && processes.leads() &&
          attempts.run([&] { html::write_page(options.report, record); })) {
        trained.files += fmt::format("The report is in {}\n", options.report);
      }
      if (options.json) {
        print_json(run_json(record));
        if (!trained.files.empty() && !options.quiet) fmt::print(stderr, "{}", style.prose(trained.files));
        return;
      }
      if (record.run().confusion) fmt::print("{}\n", record.run().confusion->report(job.data.test.class_names, style));
      fmt::print("{}{}{}", run_report(record, style), trained.files.empty() ? "" : "\n", style.prose(trained.files));
    });
  }
  if (!trained.record) attempts.rethrow();
  if (const std::string& failure = trained.record->run().failure; !failure.empty() && processes.leads())
    fmt::print(stderr, "{}\n", Style::of(STDERR_FILENO).prose("vitrine: " + failure));
  if (const std::string& diverged = trained.record->run().diverged; !diverged.empty()) {
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
