// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <vitrine/kernels/optimizer.h>

namespace vitrine {

/// AdamW: weight decay is decoupled from the gradient.
struct AdamWConfig {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

/// An optimizer and its constants, by default PyTorch's. AdamConfig::decoupled has no effect in `adam`: Kind::adamw is the decoupled one.
struct OptimizerConfig {
  enum class Kind { sgd, adam, adamw } kind = Kind::adamw;
  SgdConfig sgd;
  AdamConfig adam;
  AdamWConfig adamw;

  /// The constants of adam or adamw, as the kernel takes them. Requires one of these kinds.
  AdamConfig adam_kernel() const;
  /// Number of state buffers of the parameters' size: 0, 1 or 2.
  int state_count() const;
  double learning_rate() const;
  void set_learning_rate(double lr);
  std::string name() const;
};

/// Values from the command line; missing ones get PyTorch's defaults (lr 1e-3; weight decay 0.01 for adamw, else 0; betas 0.9, 0.999; eps 1e-8).
/// throws ConfigError on an unknown name, a value out of range, or one that the optimizer does not use (momentum for adam; nesterov without
/// momentum).
OptimizerConfig make_optimizer_config(std::string_view name, std::optional<double> lr, std::optional<double> momentum, bool nesterov,
                                      std::optional<double> weight_decay);

}  // namespace vitrine
