// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run_settings.h"

#include <algorithm>
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
  void add(const char* name, std::string value, SettingEffect effect = SettingEffect::result) { all_.push_back({name, std::move(value), effect}); }
  std::vector<RunSetting> take() { return std::move(all_); }

 private:
  std::vector<RunSetting> all_;
};

void add_data(Settings& s, const Options& o, const Job& job) {
  s.add("model", fmt::format("{}, {} classes", identify_model(job), job.model.classes));
  s.add("data", identify_data(job));
  s.add("image-size", std::to_string(job.model.height));
  s.add("preprocess", o.preprocess, SettingEffect::rounding);
  s.add("normalize", o.normalize);
  s.add("augment", o.recipe.augment);
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

void add_schedule(Settings& s, const Options& o) {
  const ScheduleOptions& schedule = o.schedule;
  s.add("lr-schedule", schedule.schedule);
  s.add("lr-step-size", given(schedule.step_size));
  s.add("lr-milestones", fmt::format("{}", fmt::join(schedule.milestones, ",")));
  s.add("lr-gamma", given(schedule.gamma));
  s.add("lr-min", given(schedule.min_lr));
  s.add("lr-patience", given(schedule.patience));
  s.add("lr-factor", given(schedule.factor));
  s.add("lr-threshold", given(schedule.threshold));
  s.add("lr-cooldown", given(schedule.cooldown));
  s.add("lr-metric", schedule.metric);
  s.add("warmup-steps", std::to_string(schedule.warmup_steps));
  s.add("warmup-factor", given(schedule.warmup_factor));
}

void add_training(Settings& s, const Options& o, const EngineConfig& config) {
  const OptimizerConfig optimizer = resolve_optimizer(o);
  const bool sgd = optimizer.kind == OptimizerConfig::Kind::sgd;
  s.add("batch-size", std::to_string(config.batch_size));
  s.add("drop-last", on_off(o.drop_last));
  s.add("shuffle", on_off(o.shuffle));
  s.add("seed", std::to_string(o.seed));
  s.add("dropout", given(o.dropout));
  s.add("optimizer", optimizer.name());
  s.add("lr", fmt::format("{}", optimizer.learning_rate()));
  s.add("momentum", sgd ? fmt::format("{}", optimizer.sgd.momentum) : "");
  s.add("nesterov", on_off(sgd && optimizer.sgd.nesterov));
  s.add("weight-decay", fmt::format("{}", sgd ? optimizer.sgd.weight_decay : optimizer.adam_kernel().weight_decay));
  s.add("no-decay", fmt::format("{}", fmt::join(o.recipe.no_decay, ",")));
  s.add("param-group", fmt::format("{}", fmt::join(o.recipe.groups, " ")));
  s.add("label-smoothing", o.recipe.label_smoothing > 0.0 ? fmt::format("{}", o.recipe.label_smoothing) : "");
  s.add("ema", given(o.recipe.ema));
  add_schedule(s, o);
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
  add_training(settings, options, run.engine->config());
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
      changes.push_back({setting.name, value, setting.value, setting.effect, named.contains(setting.name)});
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
