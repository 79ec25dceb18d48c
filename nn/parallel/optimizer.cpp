// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/optimizer.h"

#include <limits>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {

namespace {

double checked(const char* what, std::optional<double> given, double default_value) {
  const double value = given.value_or(default_value);
  if (!(value >= 0.0 && value <= std::numeric_limits<float>::max())) {
    throw ConfigError(fmt::format("optimizer: {} is {}, expected a number from 0 to 3.4e38, the largest of f32", what, value));
  }
  return value;
}

}  // namespace

int OptimizerConfig::state_count() const {
  if (kind != Kind::sgd) return 2;
  return sgd.momentum != 0.0 ? 1 : 0;
}

AdamConfig OptimizerConfig::adam_kernel() const {
  AdamConfig config = adam;
  if (kind == Kind::adamw) config = {adamw.lr, adamw.beta1, adamw.beta2, adamw.eps, adamw.weight_decay};
  config.decoupled = kind == Kind::adamw;
  return config;
}

double OptimizerConfig::learning_rate() const { return kind == Kind::sgd ? sgd.lr : adam_kernel().lr; }

void OptimizerConfig::set_learning_rate(double lr) { (kind == Kind::sgd ? sgd.lr : kind == Kind::adam ? adam.lr : adamw.lr) = lr; }

void OptimizerConfig::set_momentum(double momentum) {
  if (kind == Kind::sgd && sgd.momentum == 0.0) {
    throw ConfigError("optimizer: sgd without momentum has no buffer for one; configure a momentum above 0 (0.9, for example)");
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

OptimizerConfig make_optimizer_config(std::string_view name, std::optional<double> lr, std::optional<double> momentum, bool nesterov,
                                      std::optional<double> weight_decay) {
  OptimizerConfig config;
  if (name == "sgd") {
    config.kind = OptimizerConfig::Kind::sgd;
    const SgdConfig defaults;
    config.sgd = {checked("lr", lr, defaults.lr), checked("momentum", momentum, defaults.momentum),
                  checked("weight decay", weight_decay, defaults.weight_decay), nesterov};
    if (nesterov && config.sgd.momentum == 0.0)
      throw ConfigError({"optimizer: nesterov needs a momentum above 0, for example ", propose(Setting::momentum, "0.9")});
    return config;
  }
  if (name != "adam" && name != "adamw") throw ConfigError(fmt::format("optimizer: unknown optimizer '{}'; use one of sgd, adam, adamw", name));
  if (momentum || nesterov) {
    throw ConfigError(fmt::format("optimizer: {} has no {}; use sgd, or omit it", name, momentum ? "momentum" : "nesterov"));
  }
  config.kind = name == "adamw" ? OptimizerConfig::Kind::adamw : OptimizerConfig::Kind::adam;
  config.set_learning_rate(checked("lr", lr, config.learning_rate()));
  double& decay = name == "adamw" ? config.adamw.weight_decay : config.adam.weight_decay;
  decay = checked("weight decay", weight_decay, decay);
  return config;
}

}  // namespace vitrine
