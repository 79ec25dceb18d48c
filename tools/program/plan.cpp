// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "nn/parallel/plan_search.h"
#include "tools/program/attempts.h"
#include "tools/program/choose.h"
#include "tools/program/commands.h"
#include "tools/program/describe.h"
#include "tools/program/json_report.h"
#include "tools/program/output_file.h"
#include "tools/program/plan_report.h"
#include "tools/program/report/plan_page.h"
#include "tools/program/run_report.h"
#include "tools/program/warnings.h"

namespace vitrine::tools {

namespace {

Json plan_json(const std::vector<PlannedDevice>& devices) {
  std::vector<DeviceFigures> figures;
  for (const PlannedDevice& d : devices) {
    DeviceFigures device;
    device.device = d.name;
    device.samples_per_step = d.samples_per_step;
    device.plan = d.plan;
    device.pool.peak_bytes = d.plan.peak_bytes;
    device.pool.peak_by_category = d.plan.peak_by_category;
    device.pool.capacity_bytes = d.capacity_bytes.value_or(0);
    figures.push_back(device);
  }
  Json json = devices_json(figures);
  for (size_t i = 0; i < devices.size(); ++i) {
    const PlannedDevice& d = devices[i];
    json[i].erase("outside_bytes");
    if (!d.capacity_bytes) json[i]["capacity_bytes"] = Json();
    json[i]["fits"] = d.fits();
    json[i]["peak"] = {{"phase", phase_name(d.plan.peak_phase)}, {"layer", d.plan.peak_layer}};
    json[i]["held"] = Json::array();
    for (const HeldBytes& held : d.plan.held) json[i]["held"].push_back({{"layer", held.layer}, {"bytes", held.bytes}});
  }
  return json;
}

void write_report(const Options& options, const Job& job, const Facts& facts, const std::vector<PlannedDevice>& devices,
                  const std::string& remedies) {
  PlanReport report;
  report.title = fmt::format("The plan of {} on {} devices, {}", job.model.name, devices.size(), options.mode_name());
  report.command_line = command_line(options);
  report.facts = facts;
  report.remedies = remedies;
  for (const PlannedDevice& d : devices) report.devices.push_back({d.name, d.plan, d.capacity_bytes.value_or(0)});
  html::write_page("--report", options.report, plan_page(report));
}

}  // namespace

int run_plan(const Options& asked) {
  check_writable("--report", asked.report);
  const std::vector<DeviceId> devices = resolve_devices(asked, cuda_device_count());
  DeviceGroupOptions group_options = device_group_options(asked, devices);
  if (asked.processes > 1)
    group_options.place = ProcessGroupPlace{0, std::vector<int>(static_cast<size_t>(asked.processes), static_cast<int>(devices.size()))};
  const std::unique_ptr<DeviceGroup> group = DeviceGroup::planned(group_options);
  const Job job = open_job(asked);
  if (!asked.choices.batch_size) print_warnings(asked, batch_warnings(asked, job));
  const Chosen chosen = choose_by_plan(asked, job, *group);
  const Options& options = chosen.options;
  const Scheme scheme = resolve_scheme(options, devices, group->world_size());
  const EngineConfig config = engine_config(options, job, scheme, resolve_precision(options));
  const std::vector<DevicePlan> plans =
      plan_or_explain(job.model, *group, config, train_workload(options, job, options.steps, options.evaluate), PlanDetail::layers);

  const BatchPlan batch = plan_batch(scheme.split, config.batch_size, config.accumulate, group->world_size());
  std::vector<PlannedDevice> planned;
  for (int d = 0; d < group->size(); ++d) {
    const int64_t capacity = (*group)[d].pool().capacity_bytes();
    planned.push_back({(*group)[d].name(), batch.device_samples(d),
                       capacity == DeviceGroup::kUnlimitedBytes ? std::optional<int64_t>() : std::optional(capacity), plans[static_cast<size_t>(d)]});
  }
  const bool fits = std::all_of(planned.begin(), planned.end(), [](const PlannedDevice& d) { return d.fits(); });
  const std::string remedies =
      fits ? std::string() : describe_remedies(PlanSearch(job.model, *group, config, train_workload(options, job, options.steps, options.evaluate)));
  const std::string model = describe_job(job, FlatLayout(job.model.net->parameters(), 0));
  const std::string step =
      fmt::format("{}: {} samples per step as {}, split {}, loss {}, reduce {}{}{}", options.mode_name(), options.batch_size, describe_batch(batch),
                  scheme.split.str(), loss_at_name(scheme.loss_at), reduce_name(scheme.reduce), describe_memory(config),
                  options.processes > 1 ? fmt::format("; the first of {} processes", options.processes) : std::string());
  Attempts attempts;
  const bool reported = !options.report.empty() && attempts.run([&] {
    Facts facts = {{"model and data", model}, {"scheme", step}};
    for (const std::string& note : chosen.notes) facts.emplace_back("chosen", note);
    write_report(options, job, facts, planned, remedies);
  });
  if (options.json) {
    Json json;
    json["config"] = config_json(options, job, devices, group->world_size());
    json["processes"] = options.processes;
    json["devices"] = plan_json(planned);
    json["notes"] = chosen.notes;
    json["fits"] = fits;
    json["remedies"] = fits ? Json() : Json(remedies);
    print_json(json);
    attempts.rethrow();
    return fits ? kExitOk : kExitFailure;
  }
  for (const std::string& note : chosen.notes) fmt::print("{}\n", note);
  fmt::print("{}\n{}\n\n", model, step);
  fmt::print("{}", plan_report(planned, Style::of(STDOUT_FILENO)));
  if (!fits) fmt::print("\nIt does not fit. {}\n", remedies);
  if (reported) fmt::print("\nThe report is in {}\n", options.report);
  attempts.rethrow();
  return fits ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
