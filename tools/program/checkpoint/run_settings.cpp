// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/run_settings.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/hash.h"
#include "tools/program/render/json_report.h"
#include "tools/program/run/describe.h"
#include "tools/program/text/json_text.h"

namespace vitrine::tools {

namespace {

/// A value of the JSON configuration as text; "" for null.
std::string text_of(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

class Settings {
 public:
  explicit Settings(Json config) : config_(std::move(config)) {}

  /// Settings that have the value that the JSON configuration gives them.
  void add(std::initializer_list<const char*> names, SettingEffect effect = SettingEffect::result) {
    for (const char* const name : names) add(name, text_of(config_.at(json_key(name))), effect);
  }
  /// One whose value in force says more than its flag: a flag that is left out has a value, and some flags have none
  /// with others.
  void add(const char* name, std::string value, SettingEffect effect = SettingEffect::result) {
    all_.push_back({name, std::move(value), effect, {}});
  }
  /// A setting that only some values of `owner` have; "" with the others.
  void add_part(const char* name, const char* owner, std::string value) {
    all_.push_back({name, std::move(value), SettingEffect::result, owner});
  }
  std::vector<RunSetting> take() { return std::move(all_); }

 private:
  Json config_;
  std::vector<RunSetting> all_;
};

/// "" for the data set's own.
std::string describe_normalization(const Job& job) {
  const auto describe = [channels = static_cast<size_t>(job.data.train.channels)](const Normalization& n) {
    return fmt::format("{}/{}", fmt::join(std::span(n.mean).first(channels), ","),
                       fmt::join(std::span(n.std).first(channels), ","));
  };
  const std::string used = describe(job.normalization);
  if (used == describe({job.data.train.mean, job.data.train.std})) return "";
  return used == describe({}) ? "none" : used;
}

std::string describe_augmentation(const Augmentation& augmentation) {
  std::vector<std::string> parts;
  if (augmentation.flip) parts.emplace_back("flip");
  if (augmentation.crop_padding > 0) parts.push_back(fmt::format("crop:{}", augmentation.crop_padding));
  if (augmentation.cutout > 0) parts.push_back(fmt::format("cutout:{}", augmentation.cutout));
  return fmt::format("{}", fmt::join(parts, ","));
}

/// The kinds once each, in one order, which does not matter.
std::string describe_no_decay(const RecipeOptions& recipe) {
  const std::set<std::string> kinds(recipe.no_decay.begin(), recipe.no_decay.end());
  return fmt::format("{}", fmt::join(kinds, ","));
}

/// In the order in which they were given, which matters.
std::string describe_groups(const RecipeOptions& recipe) {
  std::vector<std::string> texts;
  for (const ParameterGroup& group : resolve_parameter_groups(recipe, 1.0)) {
    if (group.of != ParameterGroup::Of::names) continue;  // of --no-decay
    std::vector<std::string> values;
    if (group.lr_factor) values.push_back(fmt::format("lr={}", *group.lr_factor));
    if (group.weight_decay) values.push_back(fmt::format("weight-decay={}", *group.weight_decay));
    texts.push_back(fmt::format("{}:{}", group.pattern, fmt::join(values, ",")));
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

void add_data(Settings& s, const Options& o, const Job& job) {
  s.add("model", fmt::format("{}, {} classes", identify_model(job), job.model.classes));
  s.add("data", identify_data(job));
  s.add({"image-size"});
  s.add({"preprocess"}, SettingEffect::rounding);
  s.add("normalize", describe_normalization(job));
  s.add("augment", describe_augmentation(resolve_augmentation(o.recipe)));
}

/// Where and in which order the same sums are computed. Layers with running statistics take them over a micro-batch or,
/// on request, over the samples of a device.
void add_scheme(Settings& s, const Options& o, Run& run) {
  const EngineConfig& config = run.engine->config();
  const Scheme& scheme = config.scheme;
  const Backend backend = (*run.devices)[0].id().backend;
  const bool norms = run.engine->parameters().buffer_layout().any_saved(),
             local = norms && config.batch_statistics == BatchStatistics::local;
  const SettingEffect of_devices = local ? SettingEffect::result : SettingEffect::rounding;
  s.add("batch-norm", norms ? (local ? "local" : "exact") : "");
  s.add("devices", fmt::format("{} {}", run.devices->world_size(), backend == Backend::cuda ? "cuda" : "cpu"),
        of_devices);
  s.add("processes", std::to_string(run.devices->process_count()), SettingEffect::rounding);
  s.add("mode", describe_axes(scheme), SettingEffect::rounding);
  s.add("split", scheme.split.str(), of_devices);
  s.add({"accumulate"}, norms ? SettingEffect::result : SettingEffect::rounding);
  s.add("bucket-mb", fmt::format("{}, the first {}", o.bucket_mb, o.first_bucket_mb), SettingEffect::rounding);
  s.add("workspace", std::to_string(config.workspace_bytes.value()), SettingEffect::rounding);
  s.add("threads-per-device", std::to_string((*run.devices)[0].thread_count()), SettingEffect::rounding);
  s.add({"recompute-segments"}, SettingEffect::none);
  s.add("recompute", fmt::format("{}", fmt::join(config.recompute, ",")), SettingEffect::none);
}

/// All that the schedule uses, also where a flag was left out; "" for what it does not have.
void add_schedule(Settings& s, const ScheduleOptions& o) {
  s.add({"lr-schedule"});
  for (const auto& [name, value] : schedule_values(o)) s.add_part(name, "lr-schedule", value);
  s.add({"warmup-steps"});
  const double factor = o.warmup_factor.value_or(LrScheduleConfig{}.warmup_start_factor);
  s.add_part("warmup-factor", "warmup-steps", o.warmup_steps > 0 ? fmt::format("{}", factor) : "");
}

void add_training(Settings& s, const Options& o, const Job& job) {
  const OptimizerConfig optimizer = resolve_optimizer(o);
  const bool sgd = optimizer.kind == OptimizerConfig::Kind::sgd;
  s.add({"batch-size", "drop-last", "shuffle", "seed"});
  const float dropout = job.model_hash ? 0.0F : model_dropout(o.model);
  s.add("dropout", dropout > 0.0F ? fmt::format("{}", o.dropout.value_or(dropout)) : "");
  s.add({"optimizer", "lr"});
  s.add("momentum", sgd ? fmt::format("{}", optimizer.sgd.momentum) : "");
  s.add("nesterov", sgd && optimizer.sgd.nesterov ? "on" : "off");
  s.add({"weight-decay"});
  s.add("no-decay", describe_no_decay(o.recipe));
  s.add("param-group", describe_groups(o.recipe));
  s.add("label-smoothing", o.recipe.label_smoothing > 0.0 ? fmt::format("{}", o.recipe.label_smoothing) : "");
  s.add({"ema"});
  add_schedule(s, o.schedule);
  // A longer run makes the same steps at first, unless the schedule spans all of them.
  const bool spans_all = o.schedule.schedule == "cosine" || o.schedule.schedule == "one-cycle";
  const SettingEffect length = spans_all ? SettingEffect::result : SettingEffect::none;
  s.add({"epochs", "steps"}, length);
}

void add_precision(Settings& s, const Options& o, const EngineConfig& config) {
  const LossScaling& scaling = config.precision.loss_scaling;
  s.add({"precision", "loss-scale"});
  s.add("loss-scale-growth-interval",
        scaling.kind == LossScaling::Kind::dynamic ? std::to_string(scaling.constants.growth_interval) : "");
  s.add({"clip-norm", "allow-non-finite", "reduce-dtype"});
  s.add("broadcast", o.broadcast.value_or(""), SettingEffect::rounding);
  s.add({"tf32"});
  s.add("autotune", config.autotune.enabled ? "on" : "", SettingEffect::rounding);
  s.add("nccl-defaults", o.nccl_defaults ? "on" : "", SettingEffect::rounding);
  s.add("cuda-graph", o.cuda_graph ? "" : "off", SettingEffect::none);
}

/// Settings that determine the shapes of the parameters, the most likely cause of a difference first.
constexpr const char* kShapeSettings[] = {"model", "image-size", "data"};

void mark_fixed(std::vector<SettingChange>& changes) {
  for (const char* const name : kShapeSettings) {
    for (SettingChange& change : changes) {
      if (change.name == name) {
        change.fixed = true;
        return;
      }
    }
  }
}

}  // namespace

std::vector<RunSetting> run_settings(const Options& options, const Job& job, Run& run) {
  Settings settings(config_json(options, job, run.devices->options().devices, run.devices->world_size()));
  add_data(settings, options, job);
  add_scheme(settings, options, run);
  add_training(settings, options, job);
  add_precision(settings, options, run.engine->config());
  return settings.take();
}

std::string parameters_hash(const FlatLayout& layout) {
  StreamingHash hash;
  for (const ParamSpec& spec : layout.specs()) {
    const std::string text = fmt::format("{} {}\n", spec.name, spec.shape.str());
    hash.add(std::as_bytes(std::span(text)));
  }
  return fmt::format("{:016x}", hash.value());
}

std::vector<SettingChange> compare_settings(const std::vector<std::pair<std::string, std::string>>& before,
                                            const std::vector<RunSetting>& now, const std::vector<std::string>& allowed,
                                            bool same_parameters) {
  std::map<std::string, std::string> old(before.begin(), before.end());
  const std::set<std::string> named(allowed.begin(), allowed.end());
  std::set<std::string> unknown = named;
  std::vector<std::string> names;
  std::vector<SettingChange> changes;
  for (const RunSetting& setting : now) {
    unknown.erase(setting.name);
    names.push_back(setting.name);
    if (const std::string value = old[setting.name]; value != setting.value) {
      // A setting that exists only under the old or the new value of its owner is allowed with the owner.
      const bool follows = named.contains(setting.part_of) && (value.empty() || setting.value.empty());
      changes.push_back({setting.name, value, setting.value, setting.effect, follows || named.contains(setting.name)});
    }
    old.erase(setting.name);
  }
  // Settings of another version, which may change results.
  for (const auto& [name, value] : old) {
    unknown.erase(name);
    if (!value.empty()) changes.push_back({name, value, "", SettingEffect::result, named.contains(name)});
  }
  if (!unknown.empty()) {
    throw ConfigError(
        fmt::format("--resume-change {}: a checkpoint has no such setting; use names from {} ({} only while the "
                    "parameters keep their shapes)",
                    *unknown.begin(), fmt::join(names, ", "), fmt::join(kShapeSettings, ", ")));
  }
  if (!same_parameters) mark_fixed(changes);
  std::vector<SettingChange> refused;
  std::copy_if(changes.begin(), changes.end(), std::back_inserter(refused), [](const SettingChange& change) {
    return change.fixed || (change.effect == SettingEffect::result && !change.named);
  });
  if (refused.empty()) return changes;
  if (std::any_of(refused.begin(), refused.end(), [](const SettingChange& change) { return change.fixed; })) {
    throw ConfigError(fmt::format("--resume: {}; use the checkpoint's settings, or start a new run",
                                  fmt::join(describe_changes(refused), "; ")));
  }
  std::vector<std::string> refused_names;
  for (const SettingChange& change : refused) refused_names.push_back(change.name);
  throw ConfigError(fmt::format(
      "--resume: {}. This changes results; use the checkpoint's settings, or allow it with --resume-change {}",
      fmt::join(describe_changes(refused), "; "), fmt::join(refused_names, ",")));
}

std::vector<std::string> describe_changes(const std::vector<SettingChange>& changes) {
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  std::vector<std::string> texts;
  for (const SettingChange& change : changes) {
    const char* const consequence = change.fixed
                                        ? " (cannot be changed: the parameters would have other names or shapes)"
                                    : change.effect == SettingEffect::rounding ? ": results differ by rounding"
                                    : change.named                             ? ", allowed by --resume-change"
                                                                               : "";
    texts.push_back(fmt::format("--{} is {}, in the checkpoint {}{}", change.name, shown(change.now),
                                shown(change.before), consequence));
  }
  return texts;
}

bool has_changed(const std::vector<SettingChange>& changes, const std::string& name) {
  return std::any_of(changes.begin(), changes.end(), [&](const SettingChange& change) { return change.name == name; });
}

}  // namespace vitrine::tools
