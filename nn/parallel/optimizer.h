// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <vitrine/kernels/optimizer.h>
#include <vitrine/nn/parameter_store.h>

namespace vitrine {

/// An optimizer and its constants, by default PyTorch's. The kind decides, not AdamConfig::decoupled.
struct OptimizerConfig {
  enum class Kind { sgd, adam, adamw } kind = Kind::adamw;
  SgdConfig sgd;
  AdamConfig adam;
  AdamConfig adamw = {.weight_decay = 0.01, .decoupled = true};

  /// The constants of adam or adamw. Requires one of these kinds.
  AdamConfig adam_kernel() const;
  /// Number of state buffers of the parameters' size: 0, 1 or 2.
  int state_count() const;
  double learning_rate() const;
  double weight_decay() const;
  void set_learning_rate(double lr);
  /// Sets the momentum of sgd, or beta1 of adam and adamw. throws ConfigError for sgd that was configured without
  /// momentum and so has no buffer for it.
  void set_momentum(double momentum);
  std::string name() const;
};

/// Constants of some parameters that differ from the optimizer's, as torch's parameter groups. Groups are applied in
/// order: a later one overrides what an earlier one sets for the same parameter.
struct ParameterGroup {
  enum class Kind {
    names,   // parameters whose name matches `pattern`
    biases,  // one-dimensional parameters named "bias"
    norms,   // parameters of normalization layers (ParamSpec::of_norm)
  } kind = Kind::names;
  std::string pattern = {};  // * stands for any characters, ? for one: "classifier.*"
  std::optional<double> lr_factor =
      std::nullopt;  // share of the optimizer's learning rate, at every step of a schedule; >= 0
  std::optional<double> weight_decay = std::nullopt;  // instead of the optimizer's; >= 0
};

/// Ranges of equal constants over the trained parameters of a layout, for kernels/optimizer.h; null without groups.
/// throws ConfigError when a pattern matches no parameter, or only frozen ones, or a value is out of range.
UpdateRanges make_update_ranges(const FlatLayout& layout, const std::vector<ParameterGroup>& groups,
                                double weight_decay);

/// Values from the command line; missing ones get PyTorch's defaults (lr 1e-3; weight decay 0.01 for adamw, else 0;
/// betas 0.9, 0.999; eps 1e-8). throws ConfigError on an unknown name, a value out of range, or one that the optimizer
/// does not use (momentum for adam; nesterov without momentum).
OptimizerConfig make_optimizer_config(std::string_view name, std::optional<double> lr, std::optional<double> momentum,
                                      bool nesterov, std::optional<double> weight_decay);

}  // namespace vitrine
