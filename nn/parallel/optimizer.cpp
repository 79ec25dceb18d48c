// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/optimizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/settings.h"
#include "runtime/error.h"

namespace vitrine {

namespace {

double checked(const char* what, std::optional<double> given, double default_value) {
  const double value = given.value_or(default_value);
  if (!(value >= 0.0 && value <= std::numeric_limits<float>::max())) {
    throw ConfigError(
        fmt::format("optimizer: {} is {}, expected a number from 0 to 3.4e38, the largest of f32", what, value));
  }
  return value;
}

}  // namespace

int OptimizerConfig::state_count() const {
  if (kind != Kind::sgd) return 2;
  return sgd.momentum != 0.0 ? 1 : 0;
}

AdamConfig OptimizerConfig::adam_kernel() const {
  AdamConfig config = kind == Kind::adamw ? adamw : adam;
  config.decoupled = kind == Kind::adamw;
  return config;
}

double OptimizerConfig::learning_rate() const { return kind == Kind::sgd ? sgd.lr : adam_kernel().lr; }

double OptimizerConfig::weight_decay() const {
  return kind == Kind::sgd ? sgd.weight_decay : adam_kernel().weight_decay;
}

void OptimizerConfig::set_learning_rate(double lr) {
  (kind == Kind::sgd ? sgd.lr : kind == Kind::adam ? adam.lr : adamw.lr) = lr;
}

void OptimizerConfig::set_momentum(double momentum) {
  if (kind == Kind::sgd && sgd.momentum == 0.0) {
    throw ConfigError(
        "optimizer: sgd without momentum has no buffer for one; configure a momentum above 0 (0.9, for example)");
  }
  (kind == Kind::sgd ? sgd.momentum : kind == Kind::adam ? adam.beta1 : adamw.beta1) = momentum;
}

std::string OptimizerConfig::name() const {
  switch (kind) {
    case Kind::sgd:
      return "sgd";
    case Kind::adam:
      return "adam";
    case Kind::adamw:
      break;
  }
  return "adamw";
}

namespace {

bool contains(const ParameterGroup& group, const ParamSpec& spec) {
  switch (group.kind) {
    case ParameterGroup::Kind::norms:
      return spec.of_norm;
    case ParameterGroup::Kind::biases:
      return spec.shape.rank() == 1 && (spec.name == "bias" || spec.name.ends_with(".bias"));
    case ParameterGroup::Kind::names:
      break;
  }
  return name_matches(group.pattern, spec.name);
}

void check_group(const FlatLayout& layout, const ParameterGroup& group) {
  checked("the learning rate factor of a parameter group", group.lr_factor, 1.0);
  checked("the weight decay of a parameter group", group.weight_decay, 0.0);
  if (group.kind != ParameterGroup::Kind::names) return;
  const std::vector<size_t> matching = parameters_matching(group.pattern, layout.specs());
  if (std::ranges::none_of(matching, [&](size_t i) { return layout.specs()[i].trained; })) {
    throw ConfigError(
        fmt::format("all parameters that match '{}' are frozen, such as {}; leave the group out, or train one of them",
                    group.pattern, layout.specs()[matching.front()].name));
  }
}

}  // namespace

UpdateRanges make_update_ranges(const FlatLayout& all, const std::vector<ParameterGroup>& groups, double weight_decay) {
  if (groups.empty()) return nullptr;
  for (const ParameterGroup& group : groups) check_group(all, group);
  const FlatLayout layout = all.trained();
  std::vector<UpdateRange> ranges;
  for (int i = layout.size() - 1; i >= 0; --i) {  // in the order of their offsets
    UpdateRange range{layout.offset(i), i > 0 ? layout.offset(i - 1) : layout.parameter_elements(), 1.0, weight_decay};
    for (const ParameterGroup& group : groups) {
      if (!contains(group, layout.specs()[static_cast<size_t>(i)])) continue;
      range.lr_factor = group.lr_factor.value_or(range.lr_factor);
      range.weight_decay = group.weight_decay.value_or(range.weight_decay);
    }
    if (!ranges.empty() && ranges.back().lr_factor == range.lr_factor &&
        ranges.back().weight_decay == range.weight_decay) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return std::make_shared<const std::vector<UpdateRange>>(std::move(ranges));
}

OptimizerConfig make_optimizer_config(std::string_view name, std::optional<double> lr, std::optional<double> momentum,
                                      bool nesterov, std::optional<double> weight_decay) {
  OptimizerConfig config;
  if (name == "sgd") {
    config.kind = OptimizerConfig::Kind::sgd;
    const SgdConfig defaults;
    config.sgd = {checked("lr", lr, defaults.lr), checked("momentum", momentum, defaults.momentum),
                  checked("weight decay", weight_decay, defaults.weight_decay), nesterov};
    if (nesterov && config.sgd.momentum == 0.0)
      throw ConfigError(
          {"optimizer: nesterov needs a momentum above 0, for example ", propose(settings::kMomentum, "0.9")});
    return config;
  }
  if (name != "adam" && name != "adamw")
    throw ConfigError(fmt::format("optimizer: unknown optimizer '{}'; use one of sgd, adam, adamw", name));
  if (momentum || nesterov) {
    throw ConfigError({fmt::format("optimizer: {} has no {}; omit ", name, momentum ? "momentum" : "nesterov"),
                       momentum ? settings::kMomentum : settings::kNesterov, ", or use ",
                       propose(settings::kOptimizer, "sgd")});
  }
  config.kind = name == "adamw" ? OptimizerConfig::Kind::adamw : OptimizerConfig::Kind::adam;
  config.set_learning_rate(checked("lr", lr, config.learning_rate()));
  double& decay = name == "adamw" ? config.adamw.weight_decay : config.adam.weight_decay;
  decay = checked("weight decay", weight_decay, decay);
  return config;
}

}  // namespace vitrine
