// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "nn/parallel/plan/memory_plan.h"
#include "nn/parallel/plan/recompute_search.h"
#include "nn/parallel/plan/remedies.h"
#include "tools/program/choose/choose.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/advice.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/process/attempts.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/record/findings.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/checkpoint_files.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {
namespace {

// Rows of --frontier, of which each is planned.
constexpr int kChoices = 16;

std::vector<RecomputationRecord> recomputations(const RecomputeSearch& search,
                                                const std::vector<DeviceRecord>& devices) {
  const bool known = std::ranges::any_of(devices, [](const DeviceRecord& d) { return d.pool.capacity_bytes > 0; });
  std::vector<RecomputationRecord> rows;
  for (const RecomputePoint& point : search.frontier(kChoices)) {
    RecomputationRecord& row = rows.emplace_back(RecomputationRecord{
        point.recompute, point.peak_bytes, point.added_time, known ? std::optional(point.fit.fits()) : std::nullopt});
    row.saved = 1.0 - static_cast<double>(row.peak_bytes) / static_cast<double>(rows.front().peak_bytes);
    row.fastest = row.fits == true &&
                  std::ranges::none_of(rows, [](const RecomputationRecord& faster) { return faster.fastest; });
  }
  return rows;
}

PlanRecord make_record(const Chosen& chosen, const Job& job, const std::vector<DeviceId>& devices, DeviceGroup& group,
                       bool finds_remedies) {
  const Options& options = chosen.options;
  const Scheme scheme = resolve_scheme(options, devices, group.world_size());
  const EngineConfig config = engine_config(options, job, scheme, resolve_precision(options));
  const Workload workload = train_workload(options, job, options.steps, options.evaluate);
  const PlanSearch search(job.model, group, config, workload);
  std::vector<DevicePlan> plans;
  ExactPrice price;
  for (DeviceGroup* const process : search.planned().groups()) {
    std::vector<DevicePlan> own = plan_or_explain(job.model, *process, config, workload, PlanDetail::layers);
    if (!options.prove.empty() && process == &group) {
      write_output_file("--prove", options.prove,
                        [&](std::ostream& out) { write_schedule(job.model, group, config, workload, own, out); });
    }
    if (config.exact()) price = most_of(price, plan_exact_price(job.model, *process, config, workload, own));
    std::ranges::move(own, std::back_inserter(plans));
  }
  const BatchPlan batch = plan_batch(scheme.split, config.batch_size, config.accumulate, group.world_size());
  print_warnings(options, idle_device_warnings(batch));
  PlanRecord record;
  RunRecord& run = record.run = planned_run(options, job, config, batch, search.planned(), plans);
  if (config.exact()) run.exact_price = price;
  record.stage_below = plan_stage_below(options, job, config, batch, search.planned());
  if (finds_remedies && !all_fit(run.devices)) record.remedies = in_program_words(describe_remedies(search));
  if (options.frontier) record.frontier = recomputations(RecomputeSearch(search), run.devices);
  if (interrupted()) throw SearchStopped();
  const FlatLayout layout(job.model.net->parameters(), 0);
  record.title = fmt::format("The plan of {} on {}, {}", job.model.name, counted(group.world_size(), "device"),
                             options.mode_name());
  record.command_line = command_line(options);
  record.facts = {
      {"model and data", describe_job(job, layout)},
      {"scheme",
       fmt::format("{}: {} per step as {}, split {}, loss {}, reduce {}{}{}", options.mode_name(),
                   counted(options.batch_size, "sample"), describe_batch(batch), scheme.split.str(),
                   loss_at_name(scheme.loss_at), reduce_name(scheme.reduce), describe_memory(config),
                   options.processes > 1 ? fmt::format("; {} processes", options.processes) : std::string())}};
  for (const std::string& note : chosen.notes) record.facts.emplace_back("chosen", note);
  for (const auto& fact : program_facts()) record.facts.push_back(fact);
  record.config = config_json({options, job, devices, group.world_size()});
  record.notes = chosen.notes;
  for (const DevicePlan& plan : plans) {
    for (const std::string& warning : workspace_warnings(plan)) {
      if (std::ranges::find(record.notes, warning) == record.notes.end()) record.notes.push_back(warning);
    }
  }
  record.processes = options.processes;
  if (!options.checkpoints.directory.empty()) {
    record.checkpoints.emplace().planned_staging =
        plan_checkpoint_staging(layout, BufferLayout(*job.model.net), config);
  }
  conclude(record);
  return record;
}

}  // namespace

PlanRecord plan_record(const Options& asked, bool finds_remedies) {
  const std::vector<DeviceId> devices = resolve_devices(asked, cuda_device_count());
  DeviceGroupOptions group_options = device_group_options(asked, devices);
  if (asked.processes > 1)
    group_options.place =
        ProcessGroupPlace{0, std::vector<int>(static_cast<size_t>(asked.processes), static_cast<int>(devices.size()))};
  group_options.check_order = group_options.check_order || !asked.prove.empty();
  const Job job = open_job(asked);
  group_options.host_bytes = host_copies(asked, job);
  const std::unique_ptr<DeviceGroup> group = DeviceGroup::planned(group_options);
  if (!asked.choices.batch_size) print_warnings(asked, batch_warnings(asked, job));
  const Chosen mode = choose_mode(asked, job, *group);
  Chosen chosen = choose_by_plan(mode.options, job, *group);
  chosen.notes.insert(chosen.notes.begin(), mode.notes.begin(), mode.notes.end());
  return make_record(chosen, job, devices, *group, finds_remedies);
}

int run_plan(const Options& asked) {
  check_writable("--report", asked.report);
  check_writable("--prove", asked.prove);
  set_interruptible("plan");
  if (interrupted()) return interrupt_status();  // from now on a signal ends the search, with a message
  const PlanRecord record = plan_record(asked);
  Attempts attempts;
  const bool reported = !asked.report.empty() &&
                        attempts.run([&] { html::write_page(asked.report, html::page_of(record, plan_json(record))); });
  if (asked.json) {
    print_json(plan_json(record));
  } else {
    const Style style = Style::of(STDOUT_FILENO);
    for (const std::string& note : record.notes) fmt::print("{}\n", style.prose(note));
    fmt::print("{}\n{}\n\n{}", style.prose(record.facts[0].second), style.prose(record.facts[1].second),
               plan_report(record, style));
    if (reported) fmt::print("\n{}\n", style.prose("The report is in " + asked.report));
    if (!asked.prove.empty()) {
      fmt::print("\n{}\n", style.prose(fmt::format("The schedule is in {0}; check it with: tools/check_schedule {0}",
                                                   asked.prove)));
    }
  }
  attempts.rethrow();
  return all_fit(record.run.devices) ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
