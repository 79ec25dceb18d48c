// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run_settings.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/hash.h"
#include "tools/program/describe.h"

namespace vitrine::tools {

namespace {

std::string on_off(bool value) { return value ? "on" : "off"; }

template <class Value>
std::string given(const std::optional<Value>& value) {
  return value ? fmt::format("{}", *value) : "";
}

class Settings {
 public:
  void add(const char* name, std::string value, SettingEffect effect = SettingEffect::result) {
    all_.push_back({name, std::move(value), effect, {}});
  }
  /// A setting that only some values of `owner` have; "" with the others.
  void add_part(const char* name, const char* owner, std::string value) { all_.push_back({name, std::move(value), SettingEffect::result, owner}); }
  std::vector<RunSetting> take() { return std::move(all_); }

 private:
  std::vector<RunSetting> all_;
};

/// "" for the data set's own.
std::string describe_normalization(const Job& job) {
  const auto describe = [channels = static_cast<size_t>(job.data.train.channels)](const Normalization& n) {
    return fmt::format("{}/{}", fmt::join(std::span(n.mean).first(channels), ","), fmt::join(std::span(n.std).first(channels), ","));
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
  s.add("image-size", std::to_string(job.model.height));
  s.add("preprocess", o.preprocess, SettingEffect::rounding);
  s.add("normalize", describe_normalization(job));
  s.add("augment", describe_augmentation(resolve_augmentation(o.recipe)));
}

/// Where and in which order the same sums are computed. Layers with running statistics take them over a micro-batch or, on request, over the samples
/// of a device.
void add_scheme(Settings& s, const Options& o, Run& run) {
  const EngineConfig& config = run.engine->config();
  const Scheme& scheme = config.scheme;
  const Backend backend = (*run.devices)[0].id().backend;
  const bool norms = run.engine->buffer_layout().any_saved(), local = norms && config.batch_statistics == BatchStatistics::local;
  const SettingEffect of_devices = local ? SettingEffect::result : SettingEffect::rounding;
  s.add("batch-norm", norms ? (local ? "local" : "exact") : "");
  s.add("devices", fmt::format("{} {}", run.devices->world_size(), backend == Backend::cuda ? "cuda" : "cpu"), of_devices);
  s.add("processes", std::to_string(run.devices->process_count()), SettingEffect::rounding);
  s.add("mode", fmt::format("staging {}, loss {}, reduce {}", staging_name(scheme.staging), loss_at_name(scheme.loss_at), reduce_name(scheme.reduce)),
        SettingEffect::rounding);
  s.add("split", scheme.split.str(), of_devices);
  s.add("accumulate", std::to_string(config.accumulate), norms ? SettingEffect::result : SettingEffect::rounding);
  s.add("bucket-mb", fmt::format("{}, the first {}", o.bucket_mb, o.first_bucket_mb), SettingEffect::rounding);
  s.add("workspace", std::to_string(config.workspace_bytes), SettingEffect::rounding);
  s.add("threads-per-device", std::to_string((*run.devices)[0].thread_count()), SettingEffect::rounding);
  s.add("recompute-segments", std::to_string(config.recompute_segments), SettingEffect::none);
}

/// All that the schedule uses, also where a flag was left out; "" for what it does not have.
void add_schedule(Settings& s, const ScheduleOptions& o) {
  using Kind = LrScheduleConfig::Kind;
  constexpr const char* kSchedule = "lr-schedule";
  const LrScheduleConfig config = resolve_schedule(o, std::numeric_limits<int64_t>::max(), true);
  const bool step = config.kind == Kind::step, multi_step = config.kind == Kind::multi_step, plateau = config.kind == Kind::plateau;
  const auto add = [&](const char* name, bool used, auto value) { s.add_part(name, kSchedule, used ? fmt::format("{}", value) : ""); };
  s.add(kSchedule, o.schedule);
  add("lr-step-size", step, config.step_size);
  add("lr-milestones", multi_step, fmt::format("{}", fmt::join(config.milestones, ",")));
  add("lr-gamma", step || multi_step, config.gamma);
  add("lr-min", plateau || config.kind == Kind::cosine, config.min_lr);
  add("lr-patience", plateau, config.plateau.patience);
  add("lr-factor", plateau, config.plateau.factor);
  add("lr-threshold", plateau, config.plateau.threshold);
  add("lr-cooldown", plateau, config.plateau.cooldown);
  add("lr-metric", plateau, o.metric);
  s.add("warmup-steps", std::to_string(config.warmup_steps));
  s.add_part("warmup-factor", "warmup-steps", config.warmup_steps > 0 ? fmt::format("{}", config.warmup_start_factor) : "");
}

void add_training(Settings& s, const Options& o, const Job& job, const EngineConfig& config) {
  const OptimizerConfig optimizer = resolve_optimizer(o);
  const bool sgd = optimizer.kind == OptimizerConfig::Kind::sgd;
  s.add("batch-size", std::to_string(config.batch_size));
  s.add("drop-last", on_off(o.drop_last));
  s.add("shuffle", on_off(o.shuffle));
  s.add("seed", std::to_string(o.seed));
  const float dropout = job.model_hash ? 0.0F : model_dropout(o.model);
  s.add("dropout", dropout > 0.0F ? fmt::format("{}", o.dropout.value_or(dropout)) : "");
  s.add("optimizer", optimizer.name());
  s.add("lr", fmt::format("{}", optimizer.learning_rate()));
  s.add("momentum", sgd ? fmt::format("{}", optimizer.sgd.momentum) : "");
  s.add("nesterov", on_off(sgd && optimizer.sgd.nesterov));
  s.add("weight-decay", fmt::format("{}", sgd ? optimizer.sgd.weight_decay : optimizer.adam_kernel().weight_decay));
  s.add("no-decay", describe_no_decay(o.recipe));
  s.add("param-group", describe_groups(o.recipe));
  s.add("label-smoothing", o.recipe.label_smoothing > 0.0 ? fmt::format("{}", o.recipe.label_smoothing) : "");
  s.add("ema", given(o.recipe.ema));
  add_schedule(s, o.schedule);
  // A longer run makes the same steps at first, unless the schedule spans all of them.
  const bool spans_all = o.schedule.schedule == "cosine" || o.schedule.schedule == "one-cycle";
  const SettingEffect length = spans_all ? SettingEffect::result : SettingEffect::none;
  s.add("epochs", o.steps ? "" : std::to_string(o.epochs.value_or(1)), length);
  s.add("steps", given(o.steps), length);
}

void add_precision(Settings& s, const Options& o, const EngineConfig& config) {
  const Precision& precision = config.precision;
  s.add("precision", precision_name(precision.compute));
  s.add("loss-scale", loss_scale_name(precision.loss_scaling));
  s.add("loss-scale-growth-interval",
        precision.loss_scaling.kind == LossScaling::Kind::dynamic ? std::to_string(precision.loss_scaling.constants.growth_interval) : "");
  s.add("clip-norm", given(o.clip_norm));
  s.add("allow-non-finite", on_off(o.allow_non_finite));
  s.add("reduce-dtype", o.reduce_dtype);
  s.add("broadcast", o.broadcast.value_or(""), SettingEffect::rounding);
  s.add("tf32", on_off(o.tf32));
  s.add("nccl-defaults", o.nccl_defaults ? "on" : "", SettingEffect::rounding);
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
  Settings settings;
  add_data(settings, options, job);
  add_scheme(settings, options, run);
  add_training(settings, options, job, run.engine->config());
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

std::vector<SettingChange> compare_settings(const std::vector<std::pair<std::string, std::string>>& before, const std::vector<RunSetting>& now,
                                            const std::vector<std::string>& allowed, bool same_parameters) {
  std::map<std::string, std::string> old(before.begin(), before.end());
  const std::set<std::string> named(allowed.begin(), allowed.end());
  std::set<std::string> unknown = named;
  std::vector<std::string> names;
  std::vector<SettingChange> changes;
  for (const RunSetting& setting : now) {
    unknown.erase(setting.name);
    names.push_back(setting.name);
    if (const std::string value = old[setting.name]; value != setting.value) {
      // One that only the old or the new owner has changes with it.
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
        fmt::format("--resume-change {}: a checkpoint has no such setting; use names from {} ({} only while the parameters keep their shapes)",
                    *unknown.begin(), fmt::join(names, ", "), fmt::join(kShapeSettings, ", ")));
  }
  if (!same_parameters) mark_fixed(changes);
  std::vector<SettingChange> refused;
  std::copy_if(changes.begin(), changes.end(), std::back_inserter(refused),
               [](const SettingChange& change) { return change.fixed || (change.effect == SettingEffect::result && !change.named); });
  if (refused.empty()) return changes;
  if (std::any_of(refused.begin(), refused.end(), [](const SettingChange& change) { return change.fixed; })) {
    throw ConfigError(fmt::format("--resume: {}; use the checkpoint's settings, or start a new run", fmt::join(describe_changes(refused), "; ")));
  }
  std::vector<std::string> refused_names;
  for (const SettingChange& change : refused) refused_names.push_back(change.name);
  throw ConfigError(fmt::format("--resume: {}. This changes results; use the checkpoint's settings, or allow it with --resume-change {}",
                                fmt::join(describe_changes(refused), "; "), fmt::join(refused_names, ",")));
}

std::vector<std::string> describe_changes(const std::vector<SettingChange>& changes) {
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  std::vector<std::string> texts;
  for (const SettingChange& change : changes) {
    const char* const consequence = change.fixed ? " (cannot be changed: the parameters would have other names or shapes)"
                                    : change.effect == SettingEffect::rounding ? ": results differ by rounding"
                                    : change.named                             ? ", allowed by --resume-change"
                                                                               : "";
    texts.push_back(fmt::format("--{} is {}, in the checkpoint {}{}", change.name, shown(change.now), shown(change.before), consequence));
  }
  return texts;
}

bool has_changed(const std::vector<SettingChange>& changes, const std::string& name) {
  return std::any_of(changes.begin(), changes.end(), [&](const SettingChange& change) { return change.name == name; });
}

}  // namespace vitrine::tools
