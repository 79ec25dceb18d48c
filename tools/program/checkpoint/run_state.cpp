// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/run_state.h"

#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "nn/checkpoint.h"
#include "nn/json_file.h"
#include "nn/tuned_plans_file.h"
#include "runtime/error.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

/// JSON has no infinities and no NaN.
Json exact(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const std::string text = json.get<std::string>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return text == "inf" ? kInfinity : text == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

Json exact(const std::optional<double>& value) { return value ? exact(*value) : Json(); }

std::optional<double> optional_number(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(number(json));
}

Json loss_scale_json(const RunState& s) {
  if (!s.loss_scale) return {};
  return {{"scale", exact(double{s.loss_scale->first})}, {"growth_tracker", s.loss_scale->second}};
}

Json epoch_json(const EpochRecord& epoch) {
  return {{"loss_sum", exact(epoch.totals.loss_sum)},
          {"valid", epoch.totals.valid},
          {"samples", epoch.samples},
          {"steps", epoch.steps},
          {"seconds", exact(epoch.seconds)},
          {"last_loss", exact(epoch.last_loss)}};
}

EpochRecord parse_epoch(const Json& json) {
  EpochRecord epoch;
  epoch.totals.loss_sum = number(json.at("loss_sum"));
  epoch.totals.valid = json.at("valid").get<int64_t>();
  epoch.samples = json.at("samples").get<int64_t>();
  epoch.steps = json.at("steps").get<int64_t>();
  epoch.seconds = number(json.at("seconds"));
  epoch.last_loss = optional_number(json.at("last_loss"));
  return epoch;
}

Json schedule_json(const LrSchedule::State& schedule) {
  return {{"plateau_lr", exact(schedule.plateau_lr)},
          {"best", exact(schedule.best)},
          {"has_best", schedule.has_best},
          {"bad_epochs", schedule.bad_epochs},
          {"cooldown_left", schedule.cooldown_left}};
}

}  // namespace

std::string new_run_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device() & 0xffffffffU, device() & 0xffffffffU);
}

std::string run_state_json(const RunState& s) {
  Json json;
  json["version"] = s.version;
  json["run_id"] = s.run_id;
  json["parameters"] = s.parameters;
  json["step"] = s.step;
  json["updates"] = s.updates;
  json["skipped_in_row"] = s.skipped_in_row;
  json["epoch"] = s.epoch;
  json["batch"] = s.batch;
  json["batches_per_epoch"] = s.batches_per_epoch;
  json["batch_size"] = s.batch_size;
  // Random numbers are functions of the seed, the step and the epoch; there is no other random state.
  json["random"] = {{"generator", "philox4x32-10"}, {"seed", s.seed}};
  json["learning_rate"] = exact(s.learning_rate);
  json["momentum"] = exact(s.momentum);
  json["loss_scale"] = loss_scale_json(s);
  json["schedule"] = schedule_json(s.schedule);
  json["epoch_so_far"] = epoch_json(s.epoch_so_far);
  json["run_so_far"] = epoch_json(s.run_so_far);
  json["test"] = s.test_accuracy ? Json{{"loss", exact(s.test_loss)}, {"accuracy", exact(s.test_accuracy)}} : Json();
  json["best"] = s.best ? Json{{"step", s.best->step}, {"accuracy", exact(s.best->accuracy)}} : Json();
  if (s.plans) json["tuned_plans"] = Json::parse(tuned_plans_json(*s.plans));
  json["settings"] = Json::object();
  for (const auto& [name, value] : s.settings) json["settings"][name] = value;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RunState parse_run_state(const std::string& path, const std::string& text) {
  RunState s;
  try {
    const Json json = Json::parse(text);
    s.version = json.at("version").get<std::string>();
    s.run_id = json.at("run_id").get<std::string>();
    s.parameters = json.at("parameters").get<std::string>();
    s.step = json.at("step").get<int64_t>();
    s.updates = json.at("updates").get<int64_t>();
    s.skipped_in_row = json.at("skipped_in_row").get<int>();
    s.epoch = json.at("epoch").get<int64_t>();
    s.batch = json.at("batch").get<int64_t>();
    s.batches_per_epoch = json.at("batches_per_epoch").get<int64_t>();
    s.batch_size = json.at("batch_size").get<int64_t>();
    s.seed = json.at("random").at("seed").get<uint64_t>();
    s.learning_rate = number(json.at("learning_rate"));
    s.momentum = optional_number(json.at("momentum"));
    if (const Json& scale = json.at("loss_scale"); !scale.is_null()) {
      s.loss_scale.emplace(static_cast<float>(number(scale.at("scale"))), scale.at("growth_tracker").get<int32_t>());
    }
    const Json& schedule = json.at("schedule");
    s.schedule = {number(schedule.at("plateau_lr")), number(schedule.at("best")), schedule.at("has_best").get<bool>(),
                  schedule.at("bad_epochs").get<int64_t>(), schedule.at("cooldown_left").get<int64_t>()};
    s.epoch_so_far = parse_epoch(json.at("epoch_so_far"));
    s.run_so_far = parse_epoch(json.at("run_so_far"));
    if (const Json& test = json.at("test"); !test.is_null()) {
      s.test_loss = number(test.at("loss"));
      s.test_accuracy = number(test.at("accuracy"));
    }
    if (const Json& best = json.at("best"); !best.is_null())
      s.best = BestCheckpoint{best.at("step").get<int64_t>(), number(best.at("accuracy"))};
    // Only runs with --autotune have them.
    if (const auto plans = json.find("tuned_plans"); plans != json.end())
      s.plans = parse_tuned_plans(path, plans->dump());
    for (const auto& [name, value] : json.at("settings").items())
      s.settings.emplace_back(name, value.get<std::string>());
  } catch (const Json::exception& problem) {
    if (!s.version.empty() && s.version != VITRINE_VERSION) {
      throw DataError(
          fmt::format("{}: version {} wrote the checkpoint, which this version ({}) cannot continue: {}; use that "
                      "version, or start a new run from its weights with --init-weights",
                      path, s.version, VITRINE_VERSION, describe_json_error(problem)));
    }
    throw DataError(
        fmt::format("{}: the checkpoint is not one of vitrine train: {}", path, describe_json_error(problem)));
  }
  if (s.step < 0 || s.epoch < 0 || s.batch < 0 || s.batches_per_epoch < 1 || s.batch > s.batches_per_epoch ||
      s.batch_size < 1) {
    throw DataError(
        fmt::format("{}: the checkpoint has an impossible position: step {}, batch {} of {} of epoch {}, batch size {}",
                    path, s.step, s.batch, s.batches_per_epoch, s.epoch, s.batch_size));
  }
  return s;
}

std::optional<std::string> run_id_of(const std::string& checkpoint) {
  Json json;
  try {
    json = Json::parse(read_checkpoint(checkpoint, false));
  } catch (const DataError&) {
    return std::nullopt;
  }
  const auto id = json.find("run_id");
  return id != json.end() && id->is_string() ? id->get<std::string>() : std::string();
}

}  // namespace vitrine::tools
