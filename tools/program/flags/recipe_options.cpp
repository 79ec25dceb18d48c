// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/flags/options.h"

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

}  // namespace vitrine::tools
