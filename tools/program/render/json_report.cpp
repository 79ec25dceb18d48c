// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "tools/program/flags/advice.h"
#include "tools/program/flags/options.h"
#include "tools/program/render/reports.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/standard_streams.h"

namespace vitrine::tools {
namespace {

Json bytes_by_category_json(const BytesByCategory& bytes) {
  Json json;
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c)
    json[category_name(static_cast<Category>(c))] = bytes[c];
  return json;
}

Json scheme_json(const Scheme& scheme, const std::vector<DeviceId>& devices) {
  Json json;
  json["split"] = scheme.split.str();
  json["staging"] = staging_name(scheme.staging);
  json["loss_at"] = loss_at_name(scheme.loss_at);
  json["reduce"] = reduce_name(scheme.reduce);
  json["shard"] = sharding_name(scheme.shard);
  json["output_device"] =
      scheme.loss_at == LossAt::gathered ? Json(devices[static_cast<size_t>(scheme.output_device)].str()) : Json();
  return json;
}

Json precision_json(const Precision& precision) {
  Json json;
  json["precision"] = precision_name(precision.compute);
  json["loss_scale"] = loss_scale_name(precision.loss_scaling);
  return json;
}

Json staging_json(const StagingBytes& staging) {
  Json json = Json::object();
  for (const auto& [name, bytes] : staging) json[name] = bytes;
  return json;
}

Json checkpoints_json(const std::optional<CheckpointRecord>& checkpoints) {
  if (!checkpoints) return {};
  return {{"folder", checkpoints->folder},
          {"newest", text_or_null(checkpoints->newest)},
          {"saved", checkpoints->saved},
          {"failed", checkpoints->failed},
          {"bytes", checkpoints->bytes},
          {"stall_seconds", checkpoints->stall_seconds},
          {"write_seconds", checkpoints->write_seconds},
          {"staging_bytes", staging_json(checkpoints->staging)},
          {"planned_staging_bytes", staging_json(checkpoints->planned_staging)}};
}

Json epochs_json(const RunRecord& run) {
  Json json = Json::array();
  for (const EpochRecord& e : run.epochs) {
    json.push_back({{"epoch", e.epoch},
                    {"train_loss", e.totals.mean_loss()},
                    {"test_loss", value_or_null(e.test_loss)},
                    {"test_accuracy", value_or_null(e.test_accuracy)},
                    {"test_top5_accuracy", value_or_null(e.test_top5)},
                    {"samples", e.samples},
                    {"steps", e.steps},
                    {"interrupted", !e.whole()},
                    {"seconds", e.seconds},
                    {"samples_per_second", e.samples_per_second()}});
    run.tokens.add_to(json.back(), e.test_loss, e.samples_per_second());
  }
  return json;
}

/// null without --frontier.
Json frontier_json(const PlanRecord& record) {
  if (!record.frontier) return {};
  Json json = Json::array();
  for (const RecomputationRecord& row : *record.frontier) {
    json.push_back({{"recompute", row.recompute},
                    {"peak_bytes", row.peak_bytes},
                    {"added_time", row.added_time},
                    {"fits", value_or_null(row.fits)}});
  }
  return json;
}

/// null without --exact.
Json exact_price_json(const RunRecord& run) {
  if (!run.exact_price) return {};
  const ExactPrice& price = *run.exact_price;
  return {{"sent_bytes", price.sent_bytes},
          {"ordinary_sent_bytes", price.ordinary_sent_bytes},
          {"peak_bytes", price.peak_bytes},
          {"ordinary_peak_bytes", price.ordinary_peak_bytes},
          {"added_seconds", leaf_seconds_per_step(run)}};
}

Json graphs_json(const std::string& state, const GraphCounts& counts) {
  return {{"state", text_or_null(state)},           {"launched", counts.launched},
          {"issued_first_uses", counts.first_uses}, {"issued_recorded", counts.recorded},
          {"issued_moved", counts.moved},           {"issued_beyond", counts.beyond},
          {"issued_failed", counts.failed}};
}

Json measurements_json(const std::vector<DeviceRecord>& devices) {
  Json json;
  json["devices"] = devices_json(devices);
  json["phases"] = phases_json(devices);
  json["waits"] = waits_json(devices);
  json["communication"] = communication_json(devices);
  return json;
}

}  // namespace

Json run_json(const TrainingRecord& record) {
  const RunRecord& run = record.run;
  Json json;
  json["config"] = record.config;
  json["notes"] = record.notes;
  json["processes"] = record.processes;
  json["resumed_from"] = text_or_null(record.resumed_from);
  json["first_step"] = run.first_step;
  json["step_losses"] = run.step_losses;
  json["loss_scale"] = run.steps.loss_scale_json();
  json["reduction_error"] = run.steps.reduction_error_json();
  json["gradient_norms"] = run.steps.gradient_norms_json();
  json["epochs"] = epochs_json(run);
  json["confusion"] = run.confusion ? run.confusion->json() : Json();
  json.update(measurements_json(run.devices));
  json["communicator"] = record.communicator;
  json["cuda_graphs"] = graphs_json(record.cuda_graphs, record.graph_counts);
  json["tuned_plans"] = record.plans.empty() ? Json() : Json::parse(record.plans);
  json["convolutions"] = Json::array();
  for (const Conv2dChoice& choice : record.convolutions) {
    json["convolutions"].push_back({{"operation", choice.operation},
                                    {"implementation", choice.implementation},
                                    {"reason", in_program_words(choice.reason)}});
  }
  json["checkpoints"] = checkpoints_json(record.checkpoints);
  json["interrupted"] = record.interrupted;
  json["diverged"] = text_or_null(run.diverged);
  json["failure"] = text_or_null(run.failure);
  json["skipped"] = record.skipped;
  json["state_hash"] = text_or_null(run.state_hash);
  json["exact_price"] = exact_price_json(run);
  return json;
}

Json comparison_json(const ComparisonRecord& record, const std::vector<DeviceId>& devices) {
  Json json;
  json["config"] = record.config;
  json["config"]["steps"] = record.compared_steps;
  json["config"]["rounds"] = record.rounds;
  json["modes"] = Json::object();
  for (const RunRecord& run : record.runs) {
    Json& mode = json["modes"][run.name];
    mode = precision_json(run.precision);
    mode["skipped_steps"] = run.steps.skipped();
    mode["scheme"] = scheme_json(run.scheme, devices);
    mode["samples_per_second"] = run.rates.median();
    mode["samples_per_second_of_rounds"] = run.rates.rounds;
    mode.update(measurements_json(run.devices));
    mode["max_gradient_difference"] = run.gradient_difference;
    mode["vanished_gradients"] = run.vanished_gradients;
    mode["exact_price"] = exact_price_json(run);
  }
  json["refused"] = Json::object();
  for (const RunRecord& run : record.refused) {
    for (const DeviceRecord& d : run.devices) {
      json["refused"][run.name].push_back({{"device", d.device},
                                           {"samples_per_step", d.samples_per_step},
                                           {"planned_peak_bytes", d.plan.peak_bytes},
                                           {"capacity_bytes", d.pool.capacity_bytes}});
    }
  }
  json["speed"] = record.speed ? Json(record.speed->text) : Json();
  json["interrupted"] = record.interrupted;
  return json;
}

Json plan_json(const PlanRecord& record) {
  const std::vector<DeviceRecord>& devices = record.run.devices;
  Json json;
  json["config"] = record.config;
  json["processes"] = record.processes;
  json["devices"] = devices_json(devices);
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceRecord& d = devices[i];
    Json& device = json["devices"][i];
    device.erase("outside_bytes");
    device.erase("outside_bytes_by_owner");
    if (d.pool.capacity_bytes == 0) device["capacity_bytes"] = Json();
    device["fits"] = d.fits();
    device["states_bytes"] = states_bytes(d);
    device["peak"] = {{"phase", phase_name(d.plan.peak_phase)}, {"layer", d.plan.peak_layer}};
    device["held"] = Json::array();
    for (const HeldBytes& held : d.plan.held_activations)
      device["held"].push_back({{"layer", held.layer}, {"bytes", held.bytes}});
  }
  json["communication"] = communication_json(devices);
  for (Json& row : json["communication"]) {
    for (const char* measured : {"seconds", "hidden_seconds", "exposed_seconds", "late_hidden_seconds",
                                 "late_exposed_seconds", "algbw", "busbw"})
      row.erase(measured);
  }
  json["moved"] = Json::array();
  for (size_t d = 0; d < devices.size(); ++d) {
    for (const PhaseRow& row : devices[d].phases.rows) {
      if (const int64_t bytes = moved_bytes(record.run, d, row.phase); bytes > 0)
        json["moved"].push_back(
            {{"phase", phase_name(row.phase)}, {"device", devices[d].device}, {"bytes_per_step", bytes}});
    }
  }
  json["exact_price"] = exact_price_json(record.run);
  json["frontier"] = frontier_json(record);
  json["checkpoint_staging_bytes"] = record.checkpoints ? staging_json(record.checkpoints->planned_staging) : Json();
  json["notes"] = record.notes;
  json["fits"] = all_fit(devices);
  json["remedies"] = text_or_null(record.remedies);
  return json;
}

Json devices_json(const std::vector<DeviceRecord>& devices) {
  Json json = Json::array();
  for (const DeviceRecord& d : devices) {
    json.push_back({{"device", d.device},
                    {"samples_per_step", d.samples_per_step},
                    {"peak_bytes", d.pool.peak_bytes},
                    {"peak_bytes_by_category", bytes_by_category_json(d.pool.peak_by_category)},
                    {"lower_bound_bytes", allocated_bytes(d.pool.peak_by_category)},
                    {"planned_peak_bytes", d.plan.peak_bytes},
                    {"planned_peak_bytes_by_category", bytes_by_category_json(d.plan.peak_by_category)},
                    {"capacity_bytes", d.pool.capacity_bytes},
                    {"outside_bytes", d.outside_bytes},
                    {"outside_bytes_by_owner", d.outside_by_owner}});
  }
  return json;
}

Json phases_json(const std::vector<DeviceRecord>& devices) {
  Json json = Json::array();
  for (const DeviceRecord& d : devices) {
    for (const PhaseRow& row : d.phases.rows) {
      json.push_back({{"phase", phase_name(row.phase)},
                      {"device", d.device},
                      {"seconds", row.seconds},
                      {"share", row.share},
                      {"bytes", row.bytes},
                      {"calls", row.calls},
                      {"hidden_seconds", row.hidden_seconds}});
    }
  }
  return json;
}

Json waits_json(const std::vector<DeviceRecord>& devices) {
  Json json = Json::array();
  for (const DeviceRecord& d : devices) {
    for (const WaitRow& row : d.phases.waits) {
      json.push_back({{"device", d.device}, {"cause", row.cause}, {"seconds", row.seconds}, {"share", row.share}});
    }
  }
  return json;
}

Json communication_json(const std::vector<DeviceRecord>& devices) {
  const auto gigabytes = [](double bandwidth) { return bandwidth > 0 ? Json(bandwidth * 1e-9) : Json(); };
  Json json = Json::array();
  for (const DeviceRecord& d : devices) {
    for (const CommunicationRow& row : d.communication.rows) {
      json.push_back({{"name", row.name()},
                      {"phase", phase_name(row.phase)},
                      {"device", d.device},
                      {"bytes_per_step", per_step(row.buffer_bytes, d.communication)},
                      {"calls", row.calls},
                      {"seconds", row.seconds()},
                      {"hidden_seconds", row.hidden_seconds},
                      {"exposed_seconds", row.exposed_seconds},
                      {"late_hidden_seconds", row.late_hidden_seconds},
                      {"late_exposed_seconds", row.late_exposed_seconds},
                      {"algbw", gigabytes(row.algbw())},
                      {"busbw", gigabytes(row.busbw())}});
    }
  }
  return json;
}

void print_json(const Json& json) { print_results(json_text(json).append(1, '\n')); }

}  // namespace vitrine::tools
