// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/optimizer.h"

#include <cmath>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {

namespace {

double checked(const char* what, std::optional<double> given, double default_value) {
  const double value = given.value_or(default_value);
  if (!std::isfinite(value) || value < 0.0) throw ConfigError(fmt::format("optimizer: {} is {} but must be finite and >= 0", what, value));
  return value;
}

}  // namespace

int OptimizerConfig::state_count() const {
  if (kind != Kind::sgd) return 2;
  return sgd.momentum != 0.0 ? 1 : 0;
}

double OptimizerConfig::learning_rate() const { return kind == Kind::sgd ? sgd.lr : adam.lr; }

void OptimizerConfig::set_learning_rate(double lr) { (kind == Kind::sgd ? sgd.lr : adam.lr) = lr; }

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
    config.sgd = {checked("lr", lr, 1e-3), checked("momentum", momentum, 0.0), checked("weight decay", weight_decay, 0.0), nesterov};
    if (nesterov && config.sgd.momentum == 0.0)
      throw ConfigError("optimizer: nesterov needs a momentum above 0; give one, for example --momentum 0.9");
    return config;
  }
  if (name != "adam" && name != "adamw") throw ConfigError(fmt::format("optimizer: there is no '{}'; use one of sgd, adam, adamw", name));
  if (momentum || nesterov) {
    throw ConfigError(fmt::format("optimizer: {} has no {}; use --optimizer sgd, or leave it out", name, momentum ? "momentum" : "nesterov"));
  }
  const bool decoupled = name == "adamw";
  config.kind = decoupled ? OptimizerConfig::Kind::adamw : OptimizerConfig::Kind::adam;
  config.adam.lr = checked("lr", lr, 1e-3);
  config.adam.weight_decay = checked("weight decay", weight_decay, decoupled ? 0.01 : 0.0);
  config.adam.decoupled = decoupled;
  return config;
}

}  // namespace vitrine
