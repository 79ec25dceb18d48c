// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/flags/options.h"
#include "tools/program/flags/setting.h"

namespace vitrine::tools {
namespace {

/// "crop:4", of which `kind` is "crop".
int64_t read_pixels(const std::string& augment, const std::string& item, const std::string& kind) {
  const std::string text = item.size() > kind.size() ? item.substr(kind.size() + 1) : "";
  const std::optional<int64_t> pixels = parse_number<int64_t>(text);
  if (pixels && *pixels >= 1 && *pixels <= 1 << 16) return *pixels;
  throw ConfigError(fmt::format("--augment {}: expected a number of pixels of at least 1 after '{}:', got '{}'",
                                augment, kind, text));
}

/// "classifier.*:lr=0.01,weight-decay=0".
ParameterGroup parse_group(const std::string& text, double lr) {
  const auto fail = [&](const std::string& why) {
    throw ConfigError(fmt::format("--param-group {}: {}; expected PATTERN:lr=RATE,weight-decay=DECAY", text, why));
  };
  const size_t colon = text.rfind(':');
  ParameterGroup group;
  if (colon == std::string::npos || colon == 0) fail("there is no pattern before a colon");
  group.pattern = text.substr(0, colon);
  for (const std::string& item : split_text(text.substr(colon + 1), ',')) {
    const size_t equals = std::min(item.find('='), item.size());
    const std::string name = item.substr(0, equals);
    const std::optional<double> value = parse_number<double>(equals < item.size() ? item.substr(equals + 1) : "");
    if (name != "lr" && name != "weight-decay") fail(fmt::format("unknown setting '{}'", name));
    if (!value || !std::isfinite(*value) || *value < 0.0) fail(fmt::format("{} needs a number of at least 0", name));
    if (name == "lr" ? group.lr_factor : group.weight_decay) fail(fmt::format("{} is given twice", name));
    if (name == "weight-decay") {
      group.weight_decay = value;
    } else {
      if (lr == 0.0) fail("a group's learning rate keeps its ratio to --lr, which is 0");
      group.lr_factor = *value / lr;
    }
  }
  if (!group.lr_factor && !group.weight_decay) fail("it sets nothing");
  return group;
}

}  // namespace

Augmentation resolve_augmentation(const RecipeOptions& o) {
  Augmentation augmentation;
  if (o.augment.empty()) return augmentation;
  std::vector<std::string> given;
  for (const std::string& item : split_text(o.augment, ',')) {
    const std::string kind = item.substr(0, item.find(':'));
    if (std::find(given.begin(), given.end(), kind) != given.end())
      throw ConfigError(fmt::format("--augment {}: {} appears twice", o.augment, kind));
    given.push_back(kind);
    if (item == "flip") {
      augmentation.flip = true;
    } else if (kind == "crop") {
      augmentation.crop_padding = read_pixels(o.augment, item, kind);
    } else if (kind == "cutout") {
      augmentation.cutout = read_pixels(o.augment, item, kind);
    } else {
      throw ConfigError(fmt::format("--augment {}: expected flip, crop:N or cutout:N, got '{}'", o.augment, item));
    }
  }
  return augmentation;
}

void check_augmentation(const RecipeOptions& o, int64_t stored, int64_t input) {
  const Augmentation augmentation = resolve_augmentation(o);
  const auto check = [&](const char* kind, int64_t pixels, int64_t most, const char* images) {
    if (pixels <= most) return;
    throw ConfigError(fmt::format("--augment {}: {}:{} is more than the {} pixels of {}; use {}:{} or less", o.augment,
                                  kind, pixels, most, images, kind, most));
  };
  check("crop", augmentation.crop_padding, stored, "the data set's images");
  check("cutout", augmentation.cutout, input, "the model's input");
}

std::vector<ParameterGroup> resolve_parameter_groups(const RecipeOptions& o, double lr) {
  std::vector<ParameterGroup> groups;
  for (const std::string& kind : o.no_decay) {
    groups.push_back(
        {.kind = kind == "norms" ? ParameterGroup::Kind::norms : ParameterGroup::Kind::biases, .weight_decay = 0.0});
  }
  for (const std::string& text : o.groups) groups.push_back(parse_group(text, lr));
  return groups;
}

void check_recipe(const RecipeOptions& o, bool host_preprocess) {
  if (std::find(o.no_decay.begin(), o.no_decay.end(), "none") != o.no_decay.end())
    throw ConfigError(fmt::format("--no-decay {}: none excludes the others", fmt::join(o.no_decay, ",")));
  const Augmentation augmentation = resolve_augmentation(o);
  resolve_parameter_groups(o, 1.0);
  if (augmentation.any() && host_preprocess) {
    throw ConfigError(
        "--augment changes images on the device, but --preprocess host normalizes them before; leave one of them out");
  }
}

Normalization resolve_normalization(const std::string& text, const Dataset& train) {
  if (text.empty()) return {train.mean, train.std};
  if (text == "none") return {};
  const auto fail = [&](const std::string& why) {
    throw ConfigError(fmt::format(
        "--normalize {}: {}; expected means and deviations of {} channel{}, for pixels from 0 to 1, as {}", text, why,
        train.channels, train.channels == 1 ? "" : "s", train.channels == 1 ? "0.5/0.25" : "0.5,0.5,0.5/0.2,0.2,0.2"));
  };
  Normalization normalization;
  const std::vector<std::string> parts = split_text(text, '/');
  if (parts.size() != 2) fail("there is not one slash");
  for (size_t part = 0; part < 2; ++part) {
    const std::vector<std::string> items = split_text(parts[part], ',');
    if (static_cast<int64_t>(items.size()) != train.channels) {
      fail(fmt::format("'{}' has {} number{}", parts[part], items.size(), items.size() == 1 ? "" : "s"));
    }
    for (size_t c = 0; c < items.size(); ++c) {
      const std::optional<float> value = parse_number<float>(items[c]);
      if (!value || !std::isfinite(*value) || (part == 1 && !(*value > 0.0F))) {
        fail(fmt::format("'{}' is not a number{}", items[c], part == 1 ? " above 0" : ""));
      }
      (part == 0 ? normalization.mean : normalization.std)[c] = *value;
    }
  }
  const auto channels = static_cast<size_t>(train.channels);
  if (std::ranges::any_of(normalization.mean, [](float mean) { return mean > 1.0F; })) {
    const auto scaled = [&](const std::array<float, 4>& values) {
      std::vector<std::string> texts;
      for (const float value : std::span(values).first(channels))
        texts.push_back(fmt::format("{:.4g}", value / 255.0F));
      return fmt::format("{}", fmt::join(texts, ","));
    };
    fail(fmt::format("a mean above 1 is of pixels from 0 to 255; divided by 255 it is --normalize {}/{}",
                     scaled(normalization.mean), scaled(normalization.std)));
  }
  return normalization;
}

void apply_recipe(const RecipeOptions& o, EngineConfig& config) {
  config.augmentation = resolve_augmentation(o);
  config.label_smoothing = static_cast<float>(o.label_smoothing);
  config.parameter_groups = resolve_parameter_groups(o, config.optimizer.learning_rate());
  config.ema_decay = o.ema.value_or(0.0);
}

std::string describe_recipe(const RecipeOptions& o) {
  std::string text;
  if (!o.no_decay.empty()) text += fmt::format(", no decay of {}", fmt::join(o.no_decay, " and "));
  for (const std::string& group : o.groups) text += fmt::format(", group {}", group);
  if (o.label_smoothing > 0.0) text += fmt::format(", label smoothing {}", o.label_smoothing);
  if (!o.augment.empty()) text += fmt::format(", augmentation {}", o.augment);
  if (o.ema) text += fmt::format(", average of weights with decay {}", *o.ema);
  return text;
}

std::string averages_path(const std::string& path) {
  constexpr std::string_view kEnding = ".safetensors";
  const bool has_ending = path.size() > kEnding.size() && path.ends_with(kEnding);
  return (has_ending ? path.substr(0, path.size() - kEnding.size()) : path) + ".ema" + std::string(kEnding);
}

namespace {

using Kind = LrScheduleConfig::Kind;

struct Name {
  const char* name;
  Kind kind;
};
constexpr Name kNames[] = {{"constant", Kind::constant},     {"step", Kind::step},
                           {"multi-step", Kind::multi_step}, {"cosine", Kind::cosine},
                           {"one-cycle", Kind::one_cycle},   {"plateau", Kind::plateau}};

Kind kind_of(const std::string& name) {
  for (const Name& entry : kNames) {
    if (name == entry.name) return entry.kind;
  }
  throw ConfigError("--lr-schedule " + name + ": unknown schedule");
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Name& entry : kNames) names.emplace_back(entry.name);
  return names;
}

LrScheduleConfig resolve_schedule(const ScheduleOptions& o, int64_t total_steps, bool evaluates_epochs) {
  Options given, defaults;
  given.schedule = o;
  for (const SettingRow& row : setting_table()) {
    const std::vector<std::string>& schedules = row.owner.values;
    if (row.owner.name != "lr-schedule" || std::ranges::find(schedules, o.schedule) != schedules.end()) continue;
    if (row.field.json(given) == row.field.json(defaults)) continue;
    throw ConfigError(
        fmt::format("{} belongs to --lr-schedule {}, got --lr-schedule {}; omit it, or choose that schedule", row.flag,
                    fmt::join(schedules, " or "), o.schedule));
  }
  if (o.warmup_factor && o.warmup_steps == 0)
    throw ConfigError("--warmup-factor has no effect without warm-up; give --warmup-steps, or omit it");

  LrScheduleConfig config;
  config.kind = kind_of(o.schedule);
  if (!std::ranges::is_sorted(o.milestones)) {
    throw ConfigError(
        fmt::format("--lr-milestones {}: expected epochs in ascending order", fmt::join(o.milestones, ",")));
  }
  if (config.kind == Kind::multi_step && o.milestones.empty()) {
    throw ConfigError(
        "--lr-schedule multi-step: expected the epochs of the decays; give them, for example --lr-milestones 30,60,80");
  }
  if (config.kind == Kind::plateau && !evaluates_epochs && o.metric != "last-batch") {
    throw ConfigError(
        "--lr-schedule plateau watches the test set after each epoch; give --epochs instead of --steps, and no "
        "--no-eval");
  }
  if (o.warmup_steps >= total_steps && o.warmup_steps > 0) {
    throw ConfigError(fmt::format("--warmup-steps {}: the run has {} steps; expected fewer steps of warm-up",
                                  o.warmup_steps, total_steps));
  }
  const bool by_step = config.kind == Kind::cosine || config.kind == Kind::one_cycle;
  config.unit = by_step ? LrScheduleConfig::Unit::step : LrScheduleConfig::Unit::epoch;
  if (by_step) config.total = total_steps - o.warmup_steps;
  config.step_size = o.step_size.value_or(config.step_size);
  config.milestones = o.milestones;
  config.gamma = o.gamma.value_or(config.gamma);
  config.min_lr = o.min_lr.value_or(config.min_lr);
  config.plateau.maximize = o.metric == "accuracy";
  config.plateau.patience = o.patience.value_or(config.plateau.patience);
  config.plateau.factor = o.factor.value_or(config.plateau.factor);
  config.plateau.threshold = o.threshold.value_or(config.plateau.threshold);
  config.plateau.cooldown = o.cooldown.value_or(config.plateau.cooldown);
  config.plateau.eps = o.eps.value_or(config.plateau.eps);
  config.warmup_steps = o.warmup_steps;
  config.warmup_start_factor = o.warmup_factor.value_or(config.warmup_start_factor);
  return config;
}

std::string describe_schedule(const ScheduleOptions& o) {
  std::string text = o.schedule == "constant" ? "" : fmt::format(", schedule {}", o.schedule);
  if (o.warmup_steps > 0) text += fmt::format(", warm-up of {} steps", o.warmup_steps);
  return text;
}

CheckpointInterval resolve_checkpoint_interval(const CheckpointOptions& o) {
  CheckpointInterval interval;
  const std::string text = o.every.value_or("epoch");
  if (text == "epoch") {
    interval.epochs = true;
    return interval;
  }
  if (const auto steps = parse_number<int64_t>(text); steps && *steps > 0) {
    interval.steps = *steps;
    return interval;
  }
  throw ConfigError(fmt::format("--checkpoint-every {}: expected epoch or a number of steps, such as 500", text));
}

void check_checkpoint_options(const CheckpointOptions& o, const std::string& init_weights, bool evaluates_epochs) {
  resolve_checkpoint_interval(o);
  const auto needs_directory = [&](bool given, const char* option) {
    if (given && o.directory.empty())
      throw ConfigError(fmt::format("{} needs a place for checkpoints; add --checkpoint-dir DIR, or omit it", option));
  };
  needs_directory(o.every.has_value(), "--checkpoint-every");
  needs_directory(o.keep_last.has_value(), "--keep-last");
  needs_directory(o.keep_best, "--keep-best");
  needs_directory(o.resumes_automatically(), "--resume auto");
  if (o.keep_best && !evaluates_epochs) {
    throw ConfigError(
        "--keep-best compares epochs on the test set; give --epochs instead of --steps, and no --no-eval");
  }
  if (!o.resume.empty() && !o.resumes_automatically() && !init_weights.empty()) {
    throw ConfigError(
        "--resume and --init-weights both say where to start; give one of them (--resume auto takes --init-weights for "
        "the first start)");
  }
}

}  // namespace vitrine::tools
